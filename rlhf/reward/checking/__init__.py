"""Unit tests against code that must not be trusted: the tests run in one process, the code in another.

Both run inside a sandbox, to which these files are sent; so they import the standard library and one another only.
"""
