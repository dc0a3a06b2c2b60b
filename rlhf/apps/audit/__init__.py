"""`rlhf audit`: compares a run's records with one another and with what they are computed from."""
