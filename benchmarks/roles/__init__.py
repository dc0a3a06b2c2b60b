"""A policy for each role against one policy for all roles, in Kuhn poker, where distance to equilibrium is exact."""
