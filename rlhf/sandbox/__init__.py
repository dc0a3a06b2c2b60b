"""Runs Python that a model wrote, under the strongest isolation that the machine offers. Start with `program.py`."""
