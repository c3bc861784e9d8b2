"""Measurements; each program says how it is run."""
