"""The frontend's own settings; the experiment's are in impala_mm.config."""

import dataclasses

from impala_mm.config.flags import flag


@dataclasses.dataclass(frozen=True)
class LauncherConfig:
    """The frontend's own settings."""

    # fmt: off
    # -- Cluster
    workers_csv_path: str = flag(
        "workers.csv.example", group="Cluster",
        text="CSV of hosts: a row for each process. Its columns are explained in "
             "workers.csv.example.")
    tmux_sess: str = flag(
        "impala", group="Cluster",
        text="Name of the run, and of its tmux session: `tmux attach -t NAME` looks inside.")
    mpirun_args: str = flag(
        "", group="Cluster",
        text="More arguments for mpirun, as a shell would split them.")
    env: tuple[str, ...] = flag(
        (), group="Cluster",
        text="NAME=value for the environment of every process, mpirun included; may be repeated.")
    setup: str = flag(
        "", group="Cluster",
        text="Shell commands before every process, such as `module load cuda`; a row's own column "
             "replaces them.")
    restart_learners: bool = flag(
        False, group="Cluster",
        text="Learners that die start again from the last checkpoint, while actors wait. Unset: "
             "the run ends with them. Actors always start again.")
    max_restarts: int = flag(
        20, group="Cluster", least=0,
        text="Times in a row that a process which dies is started again, after 0.5 s, 1 s, 2 s and "
             "so on up to 30 s; who lived ten minutes begins anew.")
    stall_secs: float = flag(
        120, group="Cluster", least=0,
        text="Seconds without a sign of life after which a process counts as dead; while it "
             "starts, five times as many. 0: never.")
    stop_secs: float = flag(
        120, group="Cluster", least=1,
        text="Seconds that learners have for saving when the run is to end.")
    orphan_secs: float = flag(
        600, group="Cluster", least=0,
        text="Seconds after which a process on another host ends by itself: without anything that "
             "it could do, and without news from a frontend. 0: never.")
    skip_check: bool = flag(
        False, group="Cluster",
        text="Start without checking flags, ports, versions, disk and GPUs first.")
    detach: bool = flag(
        False, group="Cluster",
        text="Leave the run to itself once it is started. `d` does that later.")

    # -- Other hosts
    ssh_config: str = flag(
        "", group="Other hosts",
        text="SSH configuration file. Unset: the user's own, and the system's.")
    ssh_accept_new_hosts: bool = flag(
        False, group="Other hosts",
        text="Trust a host that is not in known_hosts, and write its key there. A key that changed "
             "is never accepted.")
    lost_secs: float = flag(
        60, group="Other hosts", least=5,
        text="Seconds without an answer of a learner's host after which the learners start again "
             "on the others, with restart_learners.")
    mirror_logdir: bool = flag(
        False, group="Other hosts",
        text="While the frontend follows a run, bring what the learners save on another host here, "
             "every 20 s.")
    deploy: bool = flag(
        False, group="Other hosts",
        text="Copy this project to the hosts first, what changed of it, and set it up there; to "
             "the row's workdir, or to ~/impala_mm.")
    wheelhouse: str = flag(
        "", group="Other hosts",
        text="With deploy: a folder of packages that `make wheelhouse` filled, for hosts without "
             "internet; it is copied to them, and their set-up asks nobody else.")

    # -- Instead of starting
    dry_run: bool = flag(
        False, group="Instead of starting a run",
        text="Print every command as it would run.")
    emit: str = flag(
        "", group="Instead of starting a run",
        text="slurm: print an sbatch script of the CSV's processes, for a Slurm cluster.")
    check: bool = flag(
        False, group="Instead of starting a run",
        text="Check what is checked before every start, and say what to mend.")
    status: bool = flag(
        False, group="Instead of starting a run",
        text="Show the run's processes, and what binds it, live; once where there is no terminal.")
    json: bool = flag(
        False, group="Instead of starting a run",
        text="With status: as JSON, once.")
    attach: bool = flag(
        False, group="Instead of starting a run",
        text="Follow a running run again, as the frontend that started it did: with the same flags "
             "of the groups Cluster and Other hosts it mends what that one would have mended.")
    logs: str = flag(
        "", group="Instead of starting a run",
        text="Follow the log of one process, such as actor-3, or of the learners.")
    fetch: bool = flag(
        False, group="Instead of starting a run",
        text="Bring the logs of all processes, and what the learners have saved on another host, "
             "to the run's folder here: what is new of it.")
    stop: bool = flag(
        False, group="Instead of starting a run",
        text="Save, and end everything that the run started.")
    apply: bool = flag(
        False, group="Instead of starting a run",
        text="Add and remove actors of a running run, as the CSV has them now.")
    # fmt: on
