"""Images inside larger files: tar shards and tables, on a disk or in an object store."""
