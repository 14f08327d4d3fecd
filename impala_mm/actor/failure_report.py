"""An actor's report of a failure to the learner, which shows it where the user looks."""

import re

from impala_mm.config.messages import is_users_file
from impala_mm.environments.faults import format_traceback
from impala_mm.environments.types import Fault
from impala_mm.transport.client import Client, Refused, Unreachable

_SECONDS = 5.0  # seconds after which a report that is not answered is dropped
_PLACE = re.compile(r'File "(.+)", line (\d+), in')
# What TensorFlow writes before the reason, and around names of its graphs.
_NO_REASON = re.compile(r"Graph execution error|Detected at node|Node: |\s|$")
_TAG = re.compile(r"\{\{.*?\}\}\s*")


def report_failure(address: str, token: str, actor: int, fault: Fault, gave_up: str = "") -> None:
    """Report a fault to the learner at `address`; do nothing if it does not answer.

    `gave_up` says why the actor ends, if it does.
    """
    text = {"text": fault.text, "kind": fault.kind, "traceback": fault.traceback}
    request = {"probe": True, "actor": actor, "failure": text | {"gave_up": gave_up}}
    try:
        Client(address, token, _SECONDS).hello(request)
    except (Refused, Unreachable):
        return


def describe_crash(error: Exception) -> Fault:
    """Return what ended an actor: in one line with the user's file and line, and its traceback.

    Within a graph these are in the error's message: of the code that made the operation.
    """
    lines = [line for line in format_traceback(error).splitlines() if line.strip()]
    places = _PLACE.findall("\n".join(lines))
    own = [(file, line) for file, line in places if _is_own_file(file)]
    message = (_TAG.sub("", line) for line in str(error).splitlines())
    reason = next((line for line in message if not _NO_REASON.match(line)), "").strip()
    kind = type(error).__name__
    if own or places:
        file, line = (own or places)[-1]
        kind += f" at {file}, line {line}"
    return Fault(f"{kind}: {reason}" if reason else kind, kind, "\n".join(lines))


def is_users(error: Exception) -> bool:
    """Return whether a line of the user's code has raised an exception."""
    return any(_is_own_file(file) for file, _ in _PLACE.findall(format_traceback(error)))


def _is_own_file(file: str) -> bool:
    return is_users_file(file) and "/site-packages/tensorflow/" not in file
