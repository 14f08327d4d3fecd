"""One file per kind of process: from its flags to its exit code.

`experiment.py` calls them and nothing else does.
They may import everything below, and load TensorFlow only once a mistake in the flags is refused.
"""
