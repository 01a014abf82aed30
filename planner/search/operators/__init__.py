"""Sharding of every operator of a layer over a device mesh, by an integer program (Zheng et al., arXiv 2201.12023, section 4).

parts → loops → strategies        what an operator can do, by one rule over its dims
links → resharding, nodes         what that costs
assembly → program → solver       the integer program of a layer (folded) or of several
menu, sharding, explanation       what is made of it
"""
