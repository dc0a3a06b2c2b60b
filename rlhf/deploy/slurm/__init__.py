"""A recipe as a job of SLURM: a script to read, and its submission."""
