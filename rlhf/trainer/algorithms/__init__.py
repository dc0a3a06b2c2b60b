"""What an algorithm is made of: registry of losses and estimators, presets, credit, KL control. Pure."""
