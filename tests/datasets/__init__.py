"""Real rows, which tests and the commands in recipes' headers train on; README.md says whose they are."""

from pathlib import Path

GSM8K = Path(__file__).parent / "gsm8k"
HH = Path(__file__).parent / "hh_rlhf" / "harmless_base_test.jsonl.gz"
