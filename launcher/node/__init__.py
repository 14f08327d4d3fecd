"""What runs on every machine of a run: supervisors, and the agent that answers for them.

The frontend calls it here, and over SSH on other hosts, which get it as one archive.
Must import nothing but itself and the standard library: a host may have no more of this project.
"""
