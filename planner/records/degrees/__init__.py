"""Records of the degrees of a plan."""
