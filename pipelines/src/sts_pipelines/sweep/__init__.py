"""Grids and searches over smoothing."""
