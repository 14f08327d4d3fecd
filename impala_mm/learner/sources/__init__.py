"""The sources of a learner's batches: new unrolls, replay, recorded games, an algorithm's own.

`choice` is the list of them, and the order in which they wrap each other.
"""
