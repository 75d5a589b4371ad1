"""Plots as SVG text."""
