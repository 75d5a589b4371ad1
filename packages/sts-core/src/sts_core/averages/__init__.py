"""Averages of other lengths than those that were kept, made after the training."""
