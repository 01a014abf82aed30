"""Measured runs beside predictions: what each row is priced as, errors, and what they are by source and kind."""
