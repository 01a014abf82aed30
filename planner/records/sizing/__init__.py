"""The records of `size`."""
