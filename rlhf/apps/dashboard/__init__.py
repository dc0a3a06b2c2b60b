"""`rlhf view`: runs in the browser, while they train and years later."""
