"""The line by which mpirun starts its daemon on another host, and what may be run of it.

mpirun passes a line of shell to the program that it calls instead of ssh (Open MPI 5):

    PRTE_PREFIX=/opt/mpi;export PRTE_PREFIX;...;/opt/mpi/bin/prted --daemonize
        --prtemca ess "env" --prtemca prte_hnp_uri "prterun-a-7@0.0;tcp://10.0.0.1:4000" ...

No shell ever reads it: `parse` takes the daemon's arguments out of it if it consists of what is
expected, and refuses any other.
"""

import re
import shlex
from collections.abc import Sequence
from typing import NamedTuple

_PATHS = r"[\w./:@+~,=%-]*(?:\$(?:DY)?LD_LIBRARY_PATH)?"
# What comes before the program: assignments for sh, or for csh.
_ASSIGNMENT = (
    rf"(?:(?:PRTE|PMIX|OPAL)_PREFIX|(?:DY)?LD_LIBRARY_PATH)={_PATHS}|export \w+|"
    rf"(?:if \( \$\?\w+ == [01] \) )?(?:setenv \w+ {_PATHS}|set \w+)"
)
_VALUE = r'"[^"$`\\\n]*"|[\w.,:/@+=%~-]+'
_LINE = re.compile(rf"(?P<before>(?:(?:{_ASSIGNMENT})\s*;\s*)*)[\w./+~-]*\bprted(?P<rest>[ ].*)")
_REST = re.compile(rf"(?: +(?:{_VALUE}))*\s*")
_PARAMETER_FLAGS = ("--prtemca", "--pmixmca", "--mca")
_OTHER_FLAGS = ("--allow-run-as-root", "--debug", "--debug-daemons", "--leave-session-attached")
_REQUIRED = ("ess", "ess_base_nspace", "ess_base_vpid", "prte_hnp_uri")
# A parameter with such a word in its name makes the daemon run or load a file.
_NAMES_FILE = re.compile(r"(^|_)(agents?|paths?|files?|dirs?|prefix|exec|commands?)(_|$)")
_AGENT = "plm_ssh_agent"
# The daemon checks that its own agent exists, though it never runs one.
_EXISTING_AGENT = "/bin/sh"


class Unexpected(ValueError):
    """An error: a line is not that of mpirun's daemon; the message says why."""


class DaemonCommand(NamedTuple):
    """The part of a line that is run."""

    arguments: list[str]  # of the program prted
    variables: set[str]  # environment variables that the line sets to the folder of Open MPI


def parse(line: str, announced: Sequence[str] = ()) -> DaemonCommand:
    """Return what may be run of mpirun's line. Raises Unexpected.

    `announced`: names of parameters that the user gives to mpirun, which may be any.
    """
    found = _LINE.fullmatch(line)
    if not found or not _REST.fullmatch(found["rest"]):
        raise Unexpected(f"this does not start mpirun's daemon: {line[:200]!r}")
    words, arguments, names = shlex.split(found["rest"]), list[str](), set[str]()
    while words:
        flag = words.pop(0)
        if flag == "--daemonize":  # it stays in the foreground, under its supervisor
            continue
        arguments.append(flag)
        if flag in _OTHER_FLAGS:
            continue
        if flag not in _PARAMETER_FLAGS or len(words) < 2:
            raise Unexpected(f"mpirun's daemon is not expected to have the argument {flag}")
        name, value = words.pop(0), words.pop(0)
        if not re.fullmatch(r"\w+", name) or (
            _NAMES_FILE.search(name) and name not in (_AGENT, *announced)
        ):
            raise Unexpected(
                f"mpirun's daemon is not expected to have the parameter {name}={value}: name it "
                f"in --mpirun_args"
            )
        names.add(name)
        arguments += [name, _EXISTING_AGENT if name == _AGENT else value]
    if missing := [name for name in _REQUIRED if name not in names]:
        raise Unexpected(f"the line of mpirun's daemon lacks the parameter {missing[0]}")
    return DaemonCommand(arguments, set(re.findall(r"\w+_PREFIX\b", found["before"])))
