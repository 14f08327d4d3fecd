"""The plan of a run: reads flags and the CSV of hosts, and makes names, commands, environments.

Every command of the frontend begins with this package. It starts nothing and connects to no host:
it must not import `hosts` or anything above.
"""
