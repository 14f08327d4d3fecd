"""The environment variables by which a program tells the processes of a run how it started them.

`jobs.local_run` sets them for a run on this machine, and the launcher for one on the hosts of a CSV
(`launcher.node.task` has the same names). Processes that were started by hand have none of them.
"""

import os
import shlex
import socket
import sys

# In the environment of processes that `experiment.py` started on this machine: the user's command.
COMMAND_VARIABLE = "IMPALA_MM_COMMAND"
# In the environment of learners and actors that one program started together: an id of this start.
START_VARIABLE = "IMPALA_MM_START"
# In the environment of learners that one program started with actors: the number of the actors.
ACTORS_VARIABLE = "IMPALA_MM_ACTORS"
# In the environment of processes that the launcher started: the name of their host in the CSV.
HOST_VARIABLE = "IMPALA_MM_HOST"


def command() -> str:
    """Return the command by which the user started this process, or the run on this machine."""
    return os.environ.get(COMMAND_VARIABLE) or shlex.join(["python", *sys.argv])


def is_local_run() -> bool:
    """Return whether `experiment.py` started this process, with all others on this machine."""
    return COMMAND_VARIABLE in os.environ


def start_id() -> str:
    """Return the id of the start to which this process belongs; empty if it was started by hand."""
    return os.environ.get(START_VARIABLE, "")


def host_name() -> str:
    """Return the name of this host in the CSV; of a process that was started by hand, its own."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def num_actors() -> int | None:
    """Return the number of actors that were started with this learner; None if it is not known."""
    text = os.environ.get(ACTORS_VARIABLE, "")
    return int(text) if text.isdecimal() and int(text) else None
