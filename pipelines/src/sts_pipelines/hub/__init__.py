"""Trained networks for the Hugging Face hub: what a folder tells of them, and how it gets there."""
