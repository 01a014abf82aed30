"""Layer graphs read from files: ONNX graphs and `torch.export` programs, any architecture.

onnx_reader, export_reader    a file to a `records.Traced`: nodes of a small vocabulary (`records.OPERATIONS`), tensors, shapes
atoms, relations              which dims of which tensors are the same
naming                        what a dim is called, from its use
operators                     nodes to `graph.Operator`: products, bytes, what the backward pass keeps
repeats, clustering, layers   operators to layers, equal layers folded
document                      the folded graph as JSON and back
"""
