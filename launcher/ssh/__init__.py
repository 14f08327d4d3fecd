"""Connections to other hosts: the SSH configuration, keys, known hosts, passwords.

`remote` connects by it.
Must import nothing of the launcher outside itself.
"""
