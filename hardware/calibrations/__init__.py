"""The shape of calibration files."""
