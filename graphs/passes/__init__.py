"""Passes over a decoder's graph, one a file; `rewrite` and `onnxruntime_operators` order them."""
