"""Measurements of the system: `python -m benchmarks NAME`. The last line of each is `RESULT {json}`."""
