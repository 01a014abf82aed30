"""The commands, a module for those that belong together; `cli` registers them.

A command parses, loads, calls one function of the library and hands its result to `console`. It holds no modelling.
"""
