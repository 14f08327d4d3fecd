"""Copies the files of a run's folder from other hosts to this machine, and back.

`--fetch`, `--mirror_logdir` and recovery call it. It must not import `running` or `commands`.
"""
