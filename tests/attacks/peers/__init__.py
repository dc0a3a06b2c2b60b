"""Servers that lie, and clients of ours that ask them."""
