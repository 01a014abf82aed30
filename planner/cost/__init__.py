"""What a plan costs: pure functions over arrays of plans, the one truth behind every printed number.

network     time of collectives over the groups of a mesh axis
compute     time of one operator on one rank
operators   time, memory and exchange of whole layers, for each distinct combination of degrees
stages      layers of each pipeline stage, folded into runs of equal stages
memory      bytes by component
data        gradient reduction, parameter gathering, optimizer step
pricing     all of it together: `price(batch, context)`
"""
