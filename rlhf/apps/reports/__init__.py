"""A run as one file to keep or to send."""
