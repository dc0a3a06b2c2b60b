"""How long training waits for a checkpoint: for its copy, beside a save that is waited for."""
