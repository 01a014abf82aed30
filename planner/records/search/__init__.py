"""The account of a search."""
