"""Computes an update: the reference in plain PyTorch, and faster kernels that agree with it to the bit."""
