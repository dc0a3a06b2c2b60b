"""What a weight sync costs beside raw gloo and vLLM's own reload of the same bytes."""
