"""Pixels: what the views of an image are, and how they are computed, batched or one by one."""
