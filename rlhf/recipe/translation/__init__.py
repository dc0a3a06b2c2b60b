"""Recipes of TRL, verl and OpenRLHF in ours: `reading` takes settings from their files, `tables` says what each means,
`computed` derives what several of them decide together, `translating` makes the recipe and the account of it."""
