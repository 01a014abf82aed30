"""The records of sweeps."""
