"""Sweeps: many runs of one recipe with other values, chosen and stopped by Ray Tune."""
