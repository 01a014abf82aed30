"""Configurations users have, read back into plans: Megatron arguments, torchtitan TOML, DeepSpeed JSON."""
