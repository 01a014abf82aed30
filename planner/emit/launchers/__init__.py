"""What starts a program on the nodes."""
