"""Measures finished runs."""
