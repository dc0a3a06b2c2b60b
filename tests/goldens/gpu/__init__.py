"""What vLLM and DeepSpeed make of our settings on GPUs, by their own configuration code on a platform that is faked."""
