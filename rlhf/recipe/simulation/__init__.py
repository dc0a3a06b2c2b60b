"""Predict a run before it starts: its own loop, buffer and router on a simulated clock, with parts that only wait."""
