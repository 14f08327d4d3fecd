"""Files of a run's folder brought from other hosts, and back.

`--fetch`, `--mirror_logdir` and recovery call it.
Must not import `running` or `commands`.
"""
