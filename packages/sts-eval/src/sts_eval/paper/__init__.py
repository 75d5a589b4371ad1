"""The numbers that the paper prints, and ours beside them."""
