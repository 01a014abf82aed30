"""What is trained: architectures, their layer graphs, and the readers and presets they come from."""
