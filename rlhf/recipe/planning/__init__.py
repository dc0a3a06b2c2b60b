"""Estimate a run before it starts: the memory of every process in every phase, and changes that make it fit."""
