"""PyTorch's answers, recorded at export for whoever checks a bundle later, and their noise."""
