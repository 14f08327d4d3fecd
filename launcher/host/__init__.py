"""What runs on every machine of a run: supervisors, and who answers for them (`far`, `here`).

Nothing but Python's own library and this package is imported here: all of it is sent to a host
(`launcher.hosts.parcel`) that may have no more of this project.
"""
