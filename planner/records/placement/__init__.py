"""The records of placements."""
