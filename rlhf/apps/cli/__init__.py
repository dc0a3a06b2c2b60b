"""The commands of `rlhf`, one file per command."""
