"""Recipes, and their functions `recipes.…:function`."""
