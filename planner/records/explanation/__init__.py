"""The records of explanations and comparisons."""
