"""A run while it goes on: start, follow, recover, stop, status.

`commands` and `checks` call it.
Must not import `checks` or `commands`.
"""
