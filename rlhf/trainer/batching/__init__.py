"""From trajectories to the micro-batches that ranks train on: flat columns, shared prompts, packed rows."""
