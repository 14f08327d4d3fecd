"""Starts and manages the processes of impala_mm on the hosts of a CSV. Imports no TensorFlow."""
