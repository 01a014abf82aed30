"""DeepSpeed: its JSON, and a package that trains the planned model with it."""
