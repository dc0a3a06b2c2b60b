"""Whether the suite can fail: faults are planted one by one, and the tests nearest to each must see them.

`python -m tests.mutants` plants two sorts. *Faults of ours* (`faults/*.toml`) are what a reviewer fears: a stale
weight, a dropped group, a seed used twice. *Mutants of the heart* (`heart.toml`) are made by a mutation library, of
every function of the modules that decide what is trained.
"""
