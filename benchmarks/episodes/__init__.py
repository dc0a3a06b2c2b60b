"""How long `rlhf view` takes to answer questions to a million recorded episodes, and its memory."""
