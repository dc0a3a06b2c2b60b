"""What the records of episodes cost: in the event loop, and on disk, next to JSON lines of the same episodes."""
