"""Where a job runs: devices, nodes, clusters, rank meshes, and the time of collectives and kernels on them.

Knows nothing of models or of the planner.
"""
