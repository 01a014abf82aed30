"""The record of the sharding of operators."""
