"""`rlhf doctor --gpu`: what only a machine with GPUs can show, one small function a check.

`table.py` lists the checks; `runner.py` gives each a process, a deadline and a log; `machine.py` is what a check gets
to work with, so that the tests run the same checks on a stand-in without GPUs.
"""
