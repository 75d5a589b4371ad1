"""A Ray cluster of this machine: its processes, and the folders of its sockets and logs."""
