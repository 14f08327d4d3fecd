"""The frontend's own settings; the experiment's are in impala_mm.config."""

import dataclasses
from typing import ClassVar, NamedTuple

from impala_mm.config.flags import flag, with_flag

# A command that follows a run has the flags of its start.
_RESTARTED = with_flag("restart_learners") | with_flag("attach") | with_flag("control")
_RESTARTED |= with_flag("experiment")  # whose trials restart theirs

_KUBERNETES = ("jobset", "mpijob", "trainjob")  # values of emit


def _refuse_host(place: str) -> None:
    """Refuse to leave the controller on another machine. Raises ValueError."""
    if place not in ("here", "none"):
        raise ValueError(
            "it must be here or none: if this machine does not stay on, run the frontend on one "
            "that does (`ssh` to it, in tmux), which may be a host of the CSV"
        )


def _refuse_relative_mounts(mounts: str) -> None:
    """Refuse what are no folders of a host and of a container. Raises ValueError."""
    for mount in filter(None, mounts.split(",")):
        source, _, target = mount.partition(":")
        if not (source.startswith("/") and target.startswith("/")):
            raise ValueError(f"{mount} is not SOURCE:TARGET, two paths that begin with /")


@dataclasses.dataclass(frozen=True)
class LauncherConfig:
    """The frontend's own settings."""

    # Flags of experiment.py that the frontend sets for each process, and why the user cannot.
    NOT_TAKEN: ClassVar = {
        "job_name": "the CSV's column job sets it",
        "task": "actors are numbered in the order of their rows",
        "learner": "the CSV's column learner sets it",
        "learner_hosts": "the learners' rows of the CSV set it",
        "num_learners": "the CSV has a row for each learner",
        "num_actors": "the CSV has a row for each actor, or its column count",
        "token_file": "each run has its own token",
        "validate": "--check does that",
    }

    # fmt: off
    # -- Cluster
    workers_csv_path: str = flag(
        "workers.csv.example", group="Cluster",
        short="CSV of hosts and processes",
        text="CSV file of the run's hosts and processes. workers.csv.example explains its columns.")
    hosts_from: str = flag(
        "", group="Cluster", choices=("", "environment"),
        text="environment: make the rows of the CSV from the machines that SkyPilot, dstack or "
             "Slurm name in the environment, where the same command runs on each: learners on the "
             "first one, one for each GPU, with four cores each, and an actor for each other core "
             "(sandbox/cloud.md).")
    experiment: str = flag(
        "", group="Cluster",
        short="file of an experiment: many runs, which share the hosts",
        text="TOML file of an experiment: flags as in a file for config, and tables that say in "
             "which values its runs differ, and how many run at once (sandbox/sweeps.md). They "
             "share the rows of the CSV, or this machine. The same command resumes the experiment "
             "in logdir, by default runs/ and the file's name. With dry_run: list the runs.")
    tmux_sess: str = flag(
        "impala", group="Cluster",
        short="name of the run and of its tmux session",
        text="Name of the run and of its tmux session: `tmux attach -t NAME` shows the processes. "
             "Unset: impala for the first run, then impala-2 and so on.")
    mpirun_args: str = flag(
        "", group="Cluster", remembered=True,
        text="Additional arguments for mpirun, split as a shell would.")
    env: tuple[str, ...] = flag(
        (), group="Cluster", remembered=True,
        text="NAME=value to set in the environment of every process, including mpirun; NAME alone "
             "takes the value from this shell, so that no command line shows it. May be repeated.")
    setup: str = flag(
        "", group="Cluster", remembered=True,
        text="Shell commands to run before every process, such as `module load cuda`. The column "
             "setup of a row replaces them.")
    restart_learners: bool = flag(
        False, group="Cluster", remembered=True,
        no_slurm="`scontrol requeue JOB` restarts learners",
        short="restart learners that crash from the last checkpoint",
        text="If learners crash, restart them from the last checkpoint while actors wait. Without "
             "it the run ends when learners crash. Actors are always restarted.")
    max_restarts: int = flag(
        20, group="Cluster", least=0, remembered=True,
        no_slurm="an actor that crashes is always restarted",
        text="Maximum number of consecutive restarts of a process, after delays of 0.5 s, 1 s, 2 s "
             "and so on up to 30 s. The count starts over once a process has run for 10 minutes.")
    stall_secs: float = flag(
        120, group="Cluster", least=0, most=1e9, remembered=True,
        no_slurm="processes that hang are not detected",
        text="Seconds without a heartbeat after which a process is killed and restarted; five "
             "times as long while it is starting. 0: never.")
    stop_secs: float = flag(
        120, group="Cluster", least=1, most=1e9, remembered=True,
        no_slurm="the script's --signal and Slurm's KillWait limit the time for saving",
        text="Seconds that learners have to save a checkpoint when the run is stopped, before they "
             "are killed; and an evaluator to test the last checkpoint when the run has ended. "
             "Processes keep the value with which they were started; --stop waits as long for a "
             "host that cannot be reached.")
    orphan_secs: float = flag(
        600, group="Cluster", least=0, most=1e9, remembered=True,
        no_slurm="Slurm ends all processes of a job",
        text="Seconds after which a process on another host than the first learner's exits by "
             "itself if it makes no progress and no frontend is connected to its host. 0: never.")
    skip_check: bool = flag(
        False, group="Cluster",
        no_slurm="nothing is checked",
        text="Start without the checks of flags, ports, versions, disk, GPUs and network.")
    detach: bool = flag(
        False, group="Cluster",
        no_slurm="sbatch returns at once",
        short="leave the run running, with a controller that restarts what fails",
        text="Exit once the run is started and leave it running, with a controller that restarts "
             "what fails until the run ends. The key `d` does the same later. With attach: leave a "
             "controller with a run that is running.")
    controller: str = flag(
        "here", group="Cluster", remembered=True, parse=_refuse_host,
        no_slurm="Slurm restarts nothing on other nodes",
        text="Where detach and the key `d` leave the controller. here: on this machine, where it "
             "logs in to the other hosts as this frontend does. none: there is no controller.")

    # -- Other hosts
    ssh_config: str = flag(
        "", group="Other hosts", for_dashboard=True,
        text="SSH configuration file. Unset: the user's and the system's own files.")
    ssh_accept_new_hosts: bool = flag(
        False, group="Other hosts", for_dashboard=True,
        text="Trust hosts that are not in known_hosts, and add their keys to it. A changed key is "
             "never accepted.")
    ssh_accept_key: tuple[str, ...] = flag(
        (), group="Other hosts",
        text="Fingerprint (SHA256:...) of a host's key: a host that is not in known_hosts is "
             "trusted if it shows this key, and the key is added to known_hosts; may be repeated.")
    lost_secs: float = flag(
        60, group="Other hosts", infinite=True, least=5, remembered=True,
        only_with=_RESTARTED,
        text="Seconds for which a learner's host must be unreachable before restart_learners "
             "restarts the learners on the other hosts, or an experiment's trials are continued "
             "there.")
    rejoin_secs: float = flag(
        120, group="Other hosts", infinite=True, least=0, remembered=True,
        only_with=_RESTARTED,
        text="With restart_learners: seconds for which a lost learner's host must answer again "
             "before the learners save and are restarted with it. The seconds double with each "
             "return of a host, which returns at most 5 times. 0: it stays unused.")
    mirror_logdir: bool = flag(
        False, group="Other hosts", remembered=True,
        no_slurm="no frontend follows the job",
        text="Download logs and checkpoints from the learners' host every 20 s while the frontend "
             "follows a run, so that they survive the loss of that host. (mirror copies them to "
             "object storage.)")
    deploy: bool = flag(
        False, group="Other hosts",
        no_slurm="nothing is copied: the nodes share this folder, or have an image",
        short="copy the project to the hosts and install it there",
        text="Before starting, copy this project to the hosts and install it there, in the row's "
             "workdir or in ~/impala_mm. Only changed files are copied.")
    wheelhouse: str = flag(
        "", group="Other hosts", only_with=with_flag("deploy"),
        text="With deploy: folder of packages from `make wheelhouse` or `impala-mm wheelhouse`. It "
             "is copied to the hosts, which then install the project without internet access.")

    # -- Launchers of others
    container_image: tuple[str, ...] = flag(
        (), group="Other launchers", only_with=with_flag("emit"),
        text="Image of the containers, with its tag; JOB=IMAGE for one job of the CSV alone, such "
             "as actor=IMAGE. May be repeated. Under Slurm pyxis starts them, from .sqsh files, "
             "too.")
    container_mounts: str = flag(
        "", group="Other launchers", only_with=with_flag("emit", "slurm"),
        parse=_refuse_relative_mounts,
        text="Folders of the nodes that containers have besides the run's: SOURCE:TARGET, "
             "separated by commas.")
    volume_claim: str = flag(
        "", group="Other launchers", only_with=with_flag("emit", *_KUBERNETES),
        text="PersistentVolumeClaim for the run's folder, in the pods of learners and evaluators.")
    node_selector: tuple[str, ...] = flag(
        (), group="Other launchers", only_with=with_flag("emit", *_KUBERNETES),
        text="KEY=VALUE, a label of the nodes that may run the pods; JOB=KEY=VALUE for one job of "
             "the CSV alone. May be repeated.")
    queue: str = flag(
        "", group="Other launchers", only_with=with_flag("emit", *_KUBERNETES),
        text="Queue of Kueue.")
    namespace: str = flag(
        "", group="Other launchers", only_with=with_flag("emit", *_KUBERNETES),
        text="Namespace of Kubernetes. Unset: that of kubectl.")
    emit_secret: bool = flag(
        False, group="Other launchers", only_with=with_flag("emit", *_KUBERNETES),
        text="Print the run's token, too: whoever reads the file can then connect to the run.")

    # -- Instead of starting
    dry_run: bool = flag(
        False, group="Instead of starting a run",
        short="print the commands of all processes",
        text="Print the commands of all processes.")
    emit: str = flag(
        "", group="Instead of starting a run",
        text="Print the run as a file for another launcher. slurm: a script for sbatch. jobset, "
             "mpijob, trainjob: objects for Kubernetes. It has the CSV's processes, or "
             "num_learners and num_actors.")
    check: bool = flag(
        False, group="Instead of starting a run",
        short="check the hosts, and print how to fix what failed",
        text="Run the checks that precede every start, and print how to fix what failed.")
    status: bool = flag(
        False, group="Instead of starting a run",
        short="show the run's processes and its bottleneck",
        text="Show the run's processes and its bottleneck, updated live on a terminal.")
    json: bool = flag(
        False, group="Instead of starting a run",
        text="Print the status once, as JSON.")
    attach: bool = flag(
        False, group="Instead of starting a run",
        short="follow the run again",
        text="Follow a running run again, with the flags of its start, such as restart_learners "
             "and env, unless they are given now: then for hosts that are lost and processes that "
             "are started from now on. Give deploy and the flags of SSH again if the run needs "
             "them. Reads the run's CSV.")
    control: bool = flag(
        False, group="Instead of starting a run",
        text="Be the controller of a running run, without a terminal, as the one that detach "
             "leaves behind: for a service manager. Takes the same flags as attach.")
    logs: str = flag(
        "", group="Instead of starting a run",
        short="print and follow the log of a process: actor-3, learners",
        text="Print and follow the log of one process, such as actor-3 or learners.")
    fetch: bool = flag(
        False, group="Instead of starting a run",
        short="download logs and checkpoints from all hosts",
        text="Download new and changed logs and checkpoints from all hosts to the run's folder on "
             "this machine.")
    save: bool = flag(
        False, group="Instead of starting a run",
        short="save a checkpoint",
        text="Let the learners of the run save a checkpoint now.")
    stop: bool = flag(
        False, group="Instead of starting a run",
        short="save and stop the run",
        text="Save and stop all processes of the run.")
    apply: bool = flag(
        False, group="Instead of starting a run",
        short="add and remove actors of a running run as the changed CSV says",
        text="Add and remove actors of a running run, so that they match the changed CSV. With "
             "deploy, hosts that lack the project receive it first.")
    # fmt: on


class SshSettings(NamedTuple):
    """The frontend's SSH flags, which hold for all hosts."""

    config: str = ""  # path of an SSH configuration; empty: the user's and the system's
    accept_new_hosts: bool = False
    accept_keys: tuple[str, ...] = ()  # fingerprints of keys that a new host may show
