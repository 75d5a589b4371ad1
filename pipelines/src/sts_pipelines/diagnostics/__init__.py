"""What is looked at before and after a run."""
