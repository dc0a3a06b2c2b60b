"""Run unit tests against untrusted code: apart from it (the tests in one process, the code in another), and beside it.

Each runs inside a sandbox, which receives the source of these modules as one program; so they import only the standard
library and one another. `judge.py` is the process of the tests and `host.py` that of the code; `beside.py` is one
process for both.
"""
