"""This system against TRL's `GRPOTrainer`: the same work on the same two cores, side by side."""
