"""The ways to split a model over ranks, one module a parallel axis."""
