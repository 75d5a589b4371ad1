"""From the name of a dataset to the batches of a step."""
