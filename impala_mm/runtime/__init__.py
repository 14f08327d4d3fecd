"""The process and the machine it runs on: signals, logs, ports, devices, heartbeats.

Every other package may call it.
Must import nothing of the library but `config`, and TensorFlow only where a device is meant.
"""
