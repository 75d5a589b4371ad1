"""Which averages to keep, made or measured after the fact: other lengths, and what each teacher of a run is worth."""
