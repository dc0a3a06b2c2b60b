"""Unit tests against code that must not be trusted: the tests run in one process, the code in another.

Both run inside a sandbox, to which the text of these modules is sent as one program; so they import the standard
library and one another only. `judge.py` is the process of the tests, `host.py` that of the code.
"""
