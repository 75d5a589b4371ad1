"""Studies: a named list of small runs and of claims, measured in process and written down with their uncertainty."""
