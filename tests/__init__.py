"""The tests. What several of them share is imported from here: `from tests.methods.training import tiny_training`."""
