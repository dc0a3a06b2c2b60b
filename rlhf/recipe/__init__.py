"""Recipes: their schema, how files become one, what is checked before a run, which workers one needs."""
