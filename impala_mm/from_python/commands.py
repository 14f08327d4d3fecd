"""The old place of `impala_mm.console`, which the commands of an earlier set-up of a clone call."""

from impala_mm.console import run_impala_mm, run_impala_mm_cluster

train, cluster = run_impala_mm, run_impala_mm_cluster
