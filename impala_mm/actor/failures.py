"""The failures of an actor: faults of its environments, environments that hang, and its own crash.

    faults   `FaultCounter` logs them, and gives up once the environments produce nothing else
    hangs    `watch_for_hangs` says where in the user's code a step or reset is. A supervisor that
             kills processes without a heartbeat does so later, so that the place is known by then
    crashes  `describe_crash`, for the learner, which shows it where the user looks

`report_failure` sends each to the learner.
"""

import itertools
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from impala_mm.config.messages import is_users_file
from impala_mm.environments import worker_vector
from impala_mm.environments.faults import FaultLog, format_traceback, indented
from impala_mm.environments.types import Environments, Fault
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say
from impala_mm.transport.client import Client, Refused, Unreachable

_MAX_WITHOUT_A_STEP = 5  # unrolls with faults after which some step should have been completed
# Consecutive unrolls of all environments that all had faults, before the actor gives up.
_MAX_BROKEN_UNROLLS = 10
_HANG_SECONDS = 30.0  # seconds without progress of the environments before they are reported
_CHECK_SECONDS = 1.0
_CALLERS = "/impala_mm/environments/"  # in the paths of files that call environments
_REPORT_SECONDS = 5.0  # seconds after which a report that is not answered is dropped
_PLACE = re.compile(r'File "(.+)", line (\d+), in')
# What TensorFlow writes before the reason, and around names of its graphs.
_NO_REASON = re.compile(r"Graph execution error|Detected at node|Node: |\s|$")
_TAG = re.compile(r"\{\{.*?\}\}\s*")


class TooManyFaults(Exception):
    """No environment works any more; the message has the last error."""


class NothingPlayed(TooManyFaults):
    """No environment of this process has ever worked, so that a restart would not help."""

    def __init__(self, what: str, fault: Fault):
        """Describe in `what` what no environment has done; `fault` is the first one."""
        super().__init__(f"{what}; the first fault: {fault.text}\n{indented(fault)}")
        self.reason, self.fault = what, fault


class FaultCounter:
    """A watch over the faults in an actor's groups of environments.

    It logs them, and raises an error once the environments produce nothing but faults. As long as
    some unrolls are complete, faults are counted and playing continues.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Environments, int]],
        heartbeat: Heartbeat,
        say: Say,
        tell: Callable[[Fault], None] = lambda fault: None,
    ):
        """Watch `groups`: each consists of environments that step together, and their number.

        `heartbeat` counts the frames of their steps. `tell` is called with the first fault of each
        kind, after it was logged through `say`.
        """
        self._groups, self._heartbeat = groups, heartbeat
        self._log = FaultLog(say, tell)
        self._size = sum(size for _, size in groups)
        self._with_faults = 0  # unrolls
        self._has_complete_unroll = False
        self._broken_unrolls = 0  # unrolls in a row that no environment has completed
        self._first: Fault | None = None
        self._last: Fault
        self.new = 0  # faults in the last unroll

    def after_unroll(self, complete: int) -> None:
        """Take and log the new faults of all groups; raise TooManyFaults if nothing else comes.

        `complete` is the number of environments that completed the unroll.
        """
        faults: list[Fault] = []
        for number, (environments, _) in enumerate(self._groups):
            new = list(environments.faults)
            del environments.faults[: len(new)]  # a group's thread may add others
            of = f"group {number}: " if len(self._groups) > 1 else ""
            faults += [fault._replace(text=f"{of}{fault.text}") for fault in new]
        for fault in faults:
            self._first = self._first or fault
            self._last = fault
            self._log.add(fault, "it is rebuilt, and its unroll is dropped")
        self._log.say_counts()
        self.new = len(faults)
        self._check(complete)
        self._with_faults += self._size - complete

    def say_counts(self) -> None:
        """Log how many faults were counted since the last time; call it at the end."""
        self._log.say_counts(now=True)

    def _check(self, complete: int) -> None:
        """Raise TooManyFaults if the environments produce nothing but faults."""
        self._broken_unrolls = 0 if complete else self._broken_unrolls + 1
        self._has_complete_unroll |= complete > 0
        no_step = not self._heartbeat.frames and self._with_faults >= _MAX_WITHOUT_A_STEP
        if not self._first or not (no_step or self._broken_unrolls >= _MAX_BROKEN_UNROLLS):
            return
        self.say_counts()
        if self._has_complete_unroll:
            raise TooManyFaults(
                f"every environment failed in each of the last {self._broken_unrolls} unrolls; the "
                f"last fault: {self._last.text}"
            )
        what = "a single step" if no_step else "an unroll without a fault"
        raise NothingPlayed(
            f"no environment of this actor has completed {what}: {self._with_faults} unrolls had "
            f"faults",
            self._first,
        )


def watch_for_hangs(
    heartbeat: Heartbeat, tell: Callable[[Fault], None], say: Say, seconds: float = _HANG_SECONDS
) -> None:
    """Start a thread that logs where an environment is if no heartbeat comes for `seconds`.

    Waits for the learner send heartbeats. Each place is also reported through `tell`, once.
    """
    faults, began = FaultLog(say, tell), time.monotonic()

    def watch() -> None:
        reported = began - 1.0  # the heartbeat after which a hang was reported
        looked = reported  # when one was last looked for
        while True:
            time.sleep(min(_CHECK_SECONDS, seconds))
            last = max(heartbeat.last, began)
            if last == reported or time.monotonic() - max(last, looked) < seconds:
                continue
            # Between two calls of an environment none is found, and a later check looks again.
            looked = time.monotonic()
            if fault := _find_hang(seconds):
                reported = last
                faults.add(fault, "it waits for the one at this place")

    threading.Thread(target=watch, name="hangs", daemon=True).start()


def _find_hang(seconds: float) -> Fault | None:
    """Return the place in the user's code where a thread is; None if no thread is in it."""
    for frame in sys._current_frames().values():
        if stack := _users_frames(frame):
            last = stack[-1]
            lines = "".join(traceback.format_list(stack)).rstrip("\n")
            return Fault(
                f"its environments have made no progress for {seconds:g} s",
                f"hang in {last.name} at {last.filename}",
                f"Stack (most recent call last):\n{lines}",
            )
    if hang := worker_vector.find_hang():
        pid, (_, *frames) = hang
        return Fault(
            f"its environments have made no progress for {seconds:g} s: the worker process {pid} "
            "does not answer",
            f"hang in {frames[-1].strip()}",
            "\n".join(["Stack (most recent call last):", *frames]),
        )
    return None


def _users_frames(frame: FrameType) -> list[traceback.FrameSummary]:
    """Return the frames that a step, reset or constructor in this process has called."""
    stack = traceback.extract_stack(frame)
    if any(each.filename == worker_vector.__file__ for each in stack):  # it waits for an answer
        return []
    frames = itertools.dropwhile(lambda frame: _CALLERS not in frame.filename, stack)
    return list(itertools.dropwhile(lambda frame: not is_users_file(frame.filename), frames))


def report_failure(address: str, token: str, actor: int, fault: Fault, gave_up: str = "") -> None:
    """Report a fault to the learner at `address`; do nothing if it does not answer.

    `gave_up` says why the actor ends, if it does.
    """
    text = {"text": fault.text, "kind": fault.kind, "traceback": fault.traceback}
    request = {"probe": True, "actor": actor, "failure": text | {"gave_up": gave_up}}
    try:
        Client(address, token, _REPORT_SECONDS).hello(request)
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
