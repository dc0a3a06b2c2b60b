"""Recorded outputs of other implementations against this library: `python -m tests.goldens DIR`."""
