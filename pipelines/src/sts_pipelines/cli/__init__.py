"""The `sts` command."""
