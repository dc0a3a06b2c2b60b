"""What the records of episodes cost: in the event loop, and on disk, beside JSON lines of the same episodes."""
