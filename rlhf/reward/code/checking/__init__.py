"""Run unit tests against untrusted code: the tests run in one process, the code in another.

Both run inside a sandbox, which receives the source of these modules as one program; so they import only the standard
library and one another. `judge.py` is the process of the tests, `host.py` that of the code.
"""
