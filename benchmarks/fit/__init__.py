"""`rlhf fit` against a full grid of the same settings."""
