"""Megatron-Bridge: a recipe that builds its model from numbers."""
