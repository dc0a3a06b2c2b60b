"""`rlhf view`: runs in the browser, while they go on and years later."""
