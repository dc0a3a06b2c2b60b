"""Everything that is one run: what it is made of, how it starts, goes on, is resumed and ends."""
