"""A run on plain hosts: nodes and training started over ssh, and ended with it."""
