"""torchtitan: a TOML file (0.2), or a Python module with a configuration function (0.3 and later)."""
