"""`torch.export` programs (`.pt2`) without torch: the zip archive, the serialised program in it, its ATen operators.

`read_export` is what the catalogue calls.
"""
