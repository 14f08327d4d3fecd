"""A report of environments that hang: where in the user's code their step or reset is.

An actor's process starts it. A supervisor that kills processes without a heartbeat does so later,
so that the place is known by then.
"""

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from impala_mm.config.messages import is_users_file
from impala_mm.environments import worker_process, worker_vector
from impala_mm.environments.faults import FaultLog
from impala_mm.environments.types import Fault
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.runtime.log import Say

_SECONDS = 30.0  # seconds without progress of the environments before they are reported
_CHECK_SECONDS = 1.0
_CALLERS = "/impala_mm/environments/"  # in the paths of files that call environments


def watch_for_hangs(
    heartbeat: Heartbeat, tell: Callable[[Fault], None], say: Say, seconds: float = _SECONDS
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
    if found := worker_vector.find_hang():
        pid, (_, *frames) = found
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
    if any(each.filename == worker_process.__file__ for each in stack):  # it waits for an answer
        return []
    frames = itertools.dropwhile(lambda each: _CALLERS not in each.filename, stack)
    return list(itertools.dropwhile(lambda each: not is_users_file(each.filename), frames))
