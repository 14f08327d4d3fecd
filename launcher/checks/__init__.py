"""The checks before a run starts: flags, ports, versions, disks, GPUs and network.

`commands.launch` calls it. It must not import `commands`.
"""
