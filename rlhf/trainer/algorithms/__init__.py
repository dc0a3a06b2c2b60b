"""Parts of an algorithm: registry of losses and estimators, presets, credit, KL control. Pure."""
