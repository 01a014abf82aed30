"""Measured steps of a site made factors that every later price takes: one scalar from one run, parts from several.

shrinkage    how far a measured run is believed, and what it leaves open
stated       `--measured k=v,...`: one run beside a job
fitting      factors of several runs
runs_file    `calibrate --from-runs RUNS.csv`
"""
