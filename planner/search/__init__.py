"""The search: declared space, scan, ranking, near misses."""
