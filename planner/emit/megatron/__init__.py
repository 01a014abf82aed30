"""Megatron-LM: `pretrain_gpt.py` and its arguments."""
