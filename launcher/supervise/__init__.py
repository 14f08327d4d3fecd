"""The programs on every machine of a run: supervisors, and the agent that reports on them.

The frontend calls this package on its own machine, and over SSH on other hosts, which receive it as
one archive. `experiment.py` runs the processes of one machine with it. It must not import anything
but itself and the standard library, since a host may have nothing else of this project.
"""
