"""The basics of every process on its machine: signals, logs, ports, devices, heartbeats.

Every other package may call this one. It must import nothing of the library except `config`. Only
`devices` and functions that need TensorFlow import TensorFlow.
"""
