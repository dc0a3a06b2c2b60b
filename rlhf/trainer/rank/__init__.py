"""The process of one rank: DeepSpeed engines of policy, critic and reward model, and their states."""
