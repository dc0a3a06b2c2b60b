"""Recipes of TRL, verl and OpenRLHF in ours: `reading` takes settings from their files, with the tables of what each
means; `translating` makes the recipe, and the account of it."""
