"""How a run comes to more machines than one: nodes of a Ray cluster, and jobs of SLURM."""
