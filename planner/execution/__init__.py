"""Runs plans on real processes and measures them.

machine     what this machine has: GPUs, cores, memory, PyTorch
scaling     a plan in miniature, for a machine that cannot hold it
processes   the ranks of one plan: started, watched, stopped
run         plans one after the other, beside their predictions
"""
