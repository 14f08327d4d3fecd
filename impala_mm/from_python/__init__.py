"""Training from Python: `impala_mm.train` and `launch` start the programs, a `Run` follows one.

Callers: users, through the names of `impala_mm`. It starts the same programs as the command line
does, in processes of their own, and must not import the launcher.
"""
