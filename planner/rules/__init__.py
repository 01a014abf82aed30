"""Feasibility rules as declared objects."""
