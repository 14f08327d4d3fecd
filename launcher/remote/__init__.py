"""The frontend's side of a run's machines: this one, and others over SSH.

`running`, `transfer`, `deploy` and `checks` call hosts by it.
Must not import any of these.
"""
