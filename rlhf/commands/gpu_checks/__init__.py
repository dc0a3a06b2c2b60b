"""`rlhf doctor --gpu`: one small function for each check of a machine with GPUs.

`table.py` lists the checks; `runner.py` gives each a process, a deadline and a log; `machine.py` is what a check gets.
The tests run the same functions on CPU tensors.
"""
