"""From the flags and the CSV of hosts to the processes of a run: names, commands, environments.

Every command of the frontend begins here.
Starts nothing and asks no host: it must not import `remote` or anything above.
"""
