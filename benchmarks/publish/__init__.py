"""The cost of a weight sync, compared with raw gloo and vLLM's own reload of the same bytes."""
