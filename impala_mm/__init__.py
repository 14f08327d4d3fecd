"""The library: actors, learners, and what travels between them. Knows nothing of hosts or SSH."""
