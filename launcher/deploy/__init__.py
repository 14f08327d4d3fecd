"""The deployment of the project: copies it to other hosts and sets it up on them.

`--deploy` calls it. It must not import `running` or `commands`.
"""
