"""Runs a recipe as a SLURM job: renders a script that people can read, and submits it."""
