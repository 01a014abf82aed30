"""Layers per stage and recomputed layers by integer program, and a proof for the whole plan.

periods     where the kinds of layers of a model repeat, so that few starting places differ
freedom     what a target can express, and which plans of a scan differ in that alone
menu        every choice of one stage with its times, tail and memory
rows        chains of dependent work: linear rows that no step undercuts, kept by shape
program     one choice a stage, least longest row (CP-SAT)
candidate   solve, price, add the chain that was longest, solve again
layers      what layers of a family take and keep
turns       the least step of interleaved pipelines, from chains of every rank
bounds      the least step any division of a candidate could take, for all candidates of a scan at once
proof       candidates in waves, best bound first, until the bound meets the best plan
"""
