"""Plain PyTorch under torchrun: a package that trains the planned model as it stands."""
