"""How many machines a training run needs: the smallest, the cheapest and the fastest cluster that meet a target."""
