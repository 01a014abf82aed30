"""Sweeps: the best plans of many models, clusters and jobs, resumable, on one machine or many."""
