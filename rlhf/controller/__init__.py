"""The controller of a run: how it is built, started, trained, resumed and ended."""
