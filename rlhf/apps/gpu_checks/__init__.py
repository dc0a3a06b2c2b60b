"""`rlhf doctor --gpu`: one small function for each check of a machine with GPUs, listed in `table.py`."""
