"""Rules of Megatron-LM, Megatron-Core and what is built on them, by subject."""
