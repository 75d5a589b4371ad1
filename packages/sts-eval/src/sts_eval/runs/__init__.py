"""Files that a run leaves, as evaluation reads them."""
