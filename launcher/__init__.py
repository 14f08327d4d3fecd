"""The cluster: from a CSV of hosts to processes. Imports no TensorFlow."""
