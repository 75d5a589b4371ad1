"""The training loop and what it is configured with."""
