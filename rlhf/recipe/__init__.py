"""Recipes: their schema, how files are merged into one, the checks before a run, and the workers a recipe needs."""
