"""Launch files: what a framework needs to run a plan, written for its own readers."""
