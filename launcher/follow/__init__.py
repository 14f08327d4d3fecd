"""A run while it is running: start, follow, recover, stop, status.

`commands` and `checks` call it. It must not import `checks` or `commands`.
"""
