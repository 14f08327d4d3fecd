"""The checks before a start: flags, ports, versions, disks, GPUs, links.

`commands.launch` calls it.
Must not import `commands`.
"""
