"""Robustness to corruption: ImageNet-C and its like, released or generated."""
