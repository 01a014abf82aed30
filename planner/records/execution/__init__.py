"""The record that `run` prints."""
