"""Other people's training loops: one file for each host, which is imported only when its file is."""
