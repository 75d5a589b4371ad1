"""The experiments of the paper by name, as the command `sts`. See README.md."""

__version__ = "0.1.0"
