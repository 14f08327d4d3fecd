"""The learners of a run as one group: equal settings, averaged gradients, equal variables.

Learners compare their settings and addresses through this package, and algorithms average and
apply gradients through it. It must import nothing above `runtime`. Only `group` calls Horovod,
and only `mpi` calls mpi4py; `agreement` and `mpi` import no TensorFlow.
"""
