"""`rlhf simulate` against runs of this machine: the time of an update that it predicts, and that they took."""
