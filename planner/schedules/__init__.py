"""Pipeline schedules: price and in-flight activations, one module each."""
