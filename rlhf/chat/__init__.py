"""Between messages and tokens: chat templates, thinking, tool-call formats."""
