"""The jobs: one module for each kind of process, which runs it from its flags to its exit code.

Only `experiment.py` calls them.
They may import every other package, and load TensorFlow only after the flags have been checked.
"""
