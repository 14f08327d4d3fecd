"""The learners of a run as one group: Horovod, averaged gradients, equal variables.

Algorithms average and apply gradients by it, learners agree on settings and addresses by it.
Must import nothing above `runtime`; `group` is the only file that knows Horovod.
"""
