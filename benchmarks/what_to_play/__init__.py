"""What choosing tasks and using groups twice save: sampled tokens to a held-out reward."""
