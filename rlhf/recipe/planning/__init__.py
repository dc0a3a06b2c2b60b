"""What a run will need, before anything starts: memory of every process in every phase, times, and what to change."""
