"""What several policies in one run cost: samples per second, and the memory of an engine."""
