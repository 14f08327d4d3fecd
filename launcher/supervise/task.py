"""The task of a supervisor, and the files by which supervisors and frontends communicate.

In the run's state folder, which only its owner can read:

    NAME/task.json     the process to run (`Task`); removed once read, since it holds an environment
    NAME/state.json    its state (`process_state.State`), written on every change and every 2 s
    NAME/stop, stop    a stop request, to this process and to all: "save", or "now"; where no
                       learner is, also "ended": the learners have ended
    NAME/hosts.json    the addresses of all learners, written by the first learner of this start as
                       soon as they are known; the supervisor copies them to its state; when the
                       first learner ends without an error, it adds "ended"
    NAME/beat          the heartbeat, written by the process itself while it makes progress; with
                       several learners each writes its own, NAME/beat-RANK
    NAME/waits-HOST    while a process waits for mpirun's daemon on HOST (`mpi_agent`), or for the
                       learners' mpirun there (`mpi_host`)
    news               touched while a frontend on another host is connected to this one

This package imports only Python's standard library, since it is sent to hosts
that may have nothing else of this project.
"""

from collections.abc import Sequence
from typing import NamedTuple

FINAL_STATES = ("ended", "failed", "stopped")  # states that no other state follows
LEARNERS = "learners"  # the name of the process of all learners
EVALUATOR = "evaluator"  # the name of that of a run in the foreground
HEARTBEAT = "IMPALA_MM_HEARTBEAT"  # environment variable of a process: its heartbeat file
# Environment variable of an mpirun that starts learners on other hosts, too: where its agents wait
# for these (`mpi_agent`).
PORTS_VARIABLE = "IMPALA_MM_MPI_PORTS"
WAITS = "waits-"  # beginning of the names of files beside the heartbeat's, see above
# Environment variable of a process, set by its supervisor: what its last start reported as a crash
# before it had worked; empty if it reported none.
CRASH_VARIABLE = "IMPALA_MM_LAST_CRASH"
# Environment variable of the learners, set by their supervisor: the file to which they report
# their addresses.
HOSTS_VARIABLE = "IMPALA_MM_LEARNER_HOSTS"
# Environment variable of learners and actors, set by the program that starts both: a random id of
# the start. An actor with an id takes no learner with another one, or with none.
START_VARIABLE = "IMPALA_MM_START"
# Environment variable of learners, set by the program that starts both: the number of actors on
# all hosts.
ACTORS_VARIABLE = "IMPALA_MM_ACTORS"
# Environment variable of processes: the name of their host in the CSV.
HOST_NAME_VARIABLE = "IMPALA_MM_HOST"
_HOSTS_FLAG = "--learner_hosts="
FIRST_PORT = 8001  # the first port that a learner tries if it chooses its port itself
# Files in a run's folder to which the first learner appends rows.
ROW_FILES = ("metrics.jsonl", "hosts.jsonl")
SAVE_REQUEST = "save-now"  # a file in a run's folder that lets learners save a checkpoint
USER_ERROR = 2  # exit code after a user's mistake: a restart would not help


class Task(NamedTuple):
    """One process, and how its supervisor treats it."""

    name: str
    job: str
    host: str
    command: list[str]
    environment: dict[str, str]  # all variables
    workdir: str
    folder: str  # the run's state folder
    log: str  # the file of its output; "": none, its output is shown on the user's own terminal
    log_max_mb: float  # size of the log in MiB before a new one is begun
    # If the learners are on another host: seconds without progress and without a connected frontend
    # after which this process ends; 0: it never does. None: the learners are on this machine.
    lease_secs: float | None
    rows: str  # file that grows once there is something to save by SIGUSR1; "": there never is
    restarts: int  # crashes in a row after which the process is restarted
    stall_secs: float  # seconds without a heartbeat before the process is killed; 0: no limit
    # Seconds between SIGUSR1 and SIGTERM, if there is something to save, or of an evaluator
    grace_secs: float
    # [pid, start time] of a process that owns `folder`: if it ends first, this one is killed and
    # `folder` is removed. None: there is none.
    parent: tuple[int, int] | None = None

    @property
    def is_learners(self) -> bool:
        """Whether it is the process of all learners, whose end ends the others."""
        return self.name == LEARNERS

    @property
    def has_other_hosts(self) -> bool:
        """Whether it is an mpirun that starts learners on other hosts, too."""
        return PORTS_VARIABLE in self.environment


def with_learner_hosts(command: Sequence[str], addresses: Sequence[str]) -> list[str]:
    """Return a command in which each --learner_hosts is `addresses`; unchanged without addresses.

    mpirun's command has one for each learner.
    """
    return [
        _HOSTS_FLAG + ",".join(addresses) if addresses and part.startswith(_HOSTS_FLAG) else part
        for part in command
    ]
