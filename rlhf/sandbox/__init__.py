"""Runs model-written Python under the strongest isolation that the machine supports. Start reading at `program.py`."""
