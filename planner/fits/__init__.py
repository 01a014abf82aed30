"""Global factors fitted to published end-to-end runs: what they multiply, their values, how they are found.

factors    the numbers that may be fitted, by name, and a set of values for them (`Fits`)
shipped    the set that comes with the package, with the runs it was fitted to
fitting    values that measured steps make likely

None of them is kept for a run, a model or a source of runs.
"""
