"""Runs training on plain hosts: starts nodes and training over ssh, and ends them when the launcher ends."""
