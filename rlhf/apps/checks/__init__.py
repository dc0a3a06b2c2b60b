"""What `rlhf check` and `rlhf reward check` look at."""
