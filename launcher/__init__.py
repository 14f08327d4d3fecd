"""Starts and manages the processes of a run on the hosts of a CSV. Imports no TensorFlow."""
