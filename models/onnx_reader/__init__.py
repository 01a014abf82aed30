"""ONNX graphs: the protobuf, its shapes, its operators, attention found again in its parts. Needs the extra `onnx`.

`read_onnx` is what the catalogue calls. Weights are never looked at: external data need not be there.
"""
