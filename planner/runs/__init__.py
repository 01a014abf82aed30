"""Measured runs: rows of a CSV file, and what model, stack and plan each of them was."""
