"""One module per verb. Each has DESCRIPTION, EXAMPLE, `add_arguments(parser)` and `run`."""
