"""Typed values: what a pipeline is, and how it is read from flags, YAML and run folders."""
