"""The vLLM engines as the controller sees them, and in their workers."""
