"""The frontend: reads a CSV of hosts and says which processes it would start on them.

  python run_experiment_mm_raw.py --workers_csv_path=workers.csv.example

It takes every flag of experiment.py and hands on those that are given. Starting the processes comes
with the cluster launcher; until then it checks the CSV and prints the plan.
"""

import sys

from impala_mm import flags
from impala_mm.config import Config
from launcher import workers
from launcher.config import LauncherConfig


def main(argv: list[str]) -> None:
    """Parses the flags, reads the CSV, prints the plan."""
    (launcher, config), given = flags.parse(argv, __doc__ or "", LauncherConfig, Config)
    try:
        rows, notes = workers.read(launcher.workers_csv_path)
    except workers.BadCsv as mistakes:
        flags.refuse(str(mistakes))
    for note in notes:
        print(f"note: {launcher.workers_csv_path}: {note}")
    sets = workers.worker_sets(rows)
    actors = sum(len(worker_set.actors) for worker_set in sets)
    print(f"{len(sets)} learner(s) under one mpirun, {actors} actor(s):")
    for rank, worker_set in enumerate(sets):
        learner = worker_set.learner
        gpus = f"  GPU {learner.cuda_visible_devices}" if learner.cuda_visible_devices else ""
        print(f"  learner {rank}  {learner.ip}:{learner.tf_port}{gpus}")
        for actor in worker_set.actors:
            print(f"    actor  {actor.ip}  -> learner {rank}")
    for row in rows:
        if row.job == "evaluator":
            print(f"  evaluator  {row.ip}")
    forwarded = [f"--{name}={getattr(config, name)}" for name in given if hasattr(config, name)]
    print(f"flags for every process: {' '.join(forwarded) or 'none, all defaults'}")


if __name__ == "__main__":
    main(sys.argv)
