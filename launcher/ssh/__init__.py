"""SSH connections to other hosts: the SSH configuration, keys, known hosts, passwords.

`remote` connects through it. It must import nothing of the launcher outside itself.
"""
