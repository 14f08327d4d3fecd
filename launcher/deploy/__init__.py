"""The project copied to other hosts and set up there.

`--deploy` calls it.
Must not import `running` or `commands`.
"""
