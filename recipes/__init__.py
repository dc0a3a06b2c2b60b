"""Recipes, and the code of their own that they name as `recipes.…:function`."""
