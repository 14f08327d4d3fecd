"""Faults of environments: what went wrong, where in the user's code, and how often.

`Environments` record a `Fault` for each error of an environment, and open another one in its place
when its `Reopening` says so. Actors and evaluations write faults through a `FaultLog`.
"""

import os
import re
import signal
import textwrap
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from impala_mm.config.messages import describe_error, is_users_file, users_traceback
from impala_mm.environments.types import Fault
from impala_mm.runtime.log import Say

_MOST_LEFT_OUT = 1000  # steps between two attempts to open an environment
_SHOWN_KINDS = 3  # kinds of faults that are logged with their traceback
_COUNT_SECONDS = 30.0  # seconds between two lines that count repeated faults
_RETURNED = {
    "reset": "reset must return (observation, info)",
    "step": "step must return (observation, reward, terminated, truncated, info)",
}
# Files that read what an environment returned: an error there is the environment's fault, too.
_READERS = (
    *("gym_vector", "observations", "spaces", "gym_adapter", "vectors"),
    *("agents", "parallel", "turns"),
)
# Exit code of a worker process whose environments closed the connection by which it answers.
CLOSED_CONNECTION = 84
# What the code of an environment may raise: a program for people may end itself.
FAILURES = (Exception, SystemExit)


class FaultElsewhere(Exception):
    """An exception that a worker process caught; `fault` describes it."""

    def __init__(self, fault: Fault):
        super().__init__(f"{fault.text}\n{fault.traceback}")
        self.fault = fault


def make_fault(
    where: str,
    error: BaseException,
    environment: int | None = None,
    called: tuple[Any, str] = ("", ""),
) -> Fault:
    """Return the fault for an exception; `where` names the environment in words.

    `called` is the environment and the method, "step" or "reset", that was called. If the error
    occurred when its result was read, the fault names the place of the method's definition.
    """
    if isinstance(error, FaultElsewhere):
        reason = error.fault.text.partition(": ")[2]
        return error.fault._replace(text=f"{where}: {reason}", environment=environment)
    frames = traceback.extract_tb(error.__traceback__)
    last, method, text = frames[-1] if frames else None, called[1], describe_error(error)
    kind = f"{type(error).__name__} at {last.filename}:{last.lineno}" if last else text
    if not method or (last and not _reads_results(last.filename)):
        return Fault(f"{where}: {text}", kind, format_traceback(error), environment)
    if last and last.name in ("step", "several", "reset", "_reset"):  # they unpack the result
        text = f"{_RETURNED[method]}: {text}"
    shown = _place_of_definition(*called) or format_traceback(error)
    return Fault(f"{where}: {text}", kind, shown, environment)


def format_traceback(error: BaseException) -> str:
    """Return an exception's traceback as text, beginning at the first frame of the user's code.

    If no frame belongs to it, the traceback is complete.
    """
    return users_traceback(error) or "".join(traceback.format_exception(error)).rstrip("\n")


class FaultLog:
    """A log of faults: the first one of each kind with its traceback; later ones are counted."""

    def __init__(self, say: Say, tell: Callable[[Fault], None] = lambda fault: None):
        """Log through `say`, and call `tell` with each fault that is logged with its traceback."""
        self._say, self._tell = say, tell
        self._shown: set[str] = set()  # kinds
        self._more: Counter[str] = Counter()  # faults that were not logged yet, by kind
        self._newest: dict[str, Fault] = {}  # by kind, of those
        self._counted_at = time.monotonic()
        self.added = 0  # faults since the start

    def add(self, fault: Fault, consequence: str) -> None:
        """Log a fault with its consequence in words, or count it if its kind was logged before."""
        self.added += 1
        if fault.kind in self._shown or len(self._shown) == _SHOWN_KINDS:
            self._more[fault.kind] += 1
            self._newest[fault.kind] = fault
            return
        self._shown.add(fault.kind)
        self._say(f"{fault.text}; {consequence}\n{indented(fault)}")
        self._tell(fault)

    def say_counts(self, now: bool = False) -> None:
        """Log how many faults were counted since the last time, at most twice a minute.

        With `now`, log it at once.
        """
        if not self._more or not (now or time.monotonic() - self._counted_at > _COUNT_SECONDS):
            return
        self._counted_at = time.monotonic()
        for kind, count in self._more.most_common(_SHOWN_KINDS):
            faults = "fault" if count == 1 else "faults"
            self._say(f"... {count} more {faults} of this kind: {self._newest[kind].text}")
        self._more.clear()
        self._newest.clear()


def indented(fault: Fault) -> str:
    """Return a fault's traceback, indented: the lines belong to the message before them."""
    return textwrap.indent(fault.traceback, "  ")


def _reads_results(filename: str) -> bool:
    """Return whether a file is not the environment's: it only reads what environments return."""
    file = Path(filename)
    is_reader = file.parent == Path(__file__).parent and file.stem in _READERS
    is_wrapper = file.name == "core.py" or "wrappers" in file.parts
    return is_reader or (is_wrapper and not is_users_file(filename))


def _place_of_definition(environment: Any, method: str) -> str:
    """Return where the innermost environment's method is defined; empty if it is not known."""
    innermost = getattr(environment, "unwrapped", environment)
    innermost = getattr(innermost, "adapted", innermost)
    code = getattr(getattr(innermost, method, None), "__code__", None)
    if code is None or not is_users_file(code.co_filename):
        return ""
    return f'returned by File "{code.co_filename}", line {code.co_firstlineno}, in {method}'


class Reopening:
    """A rule for what has failed: the next step opens it again, or a later one.

    To open it may take long, and all other environments wait meanwhile. So what fails sooner than
    it was waited for is waited for twice as long.
    """

    def __init__(self) -> None:
        self._since = -1  # the step in which it was opened or has failed
        self._wait = 0  # steps that are left out

    def failed(self, step: int) -> None:
        """Take note of a failure in a step, of which this is the number."""
        lasted = step - self._since > self._wait + 1
        self._wait = 0 if lasted else min(2 * self._wait + 1, _MOST_LEFT_OUT)
        self._since = step

    def is_due(self, step: int) -> bool:
        """Return whether it is to be opened in this step; if so, it is taken to be open."""
        if step - self._since <= self._wait:
            return False
        self._since = step
        return True


def describe_end(code: int) -> str:
    """Return in words how a process ended, by the exit code that `subprocess` gives."""
    if code == CLOSED_CONNECTION:
        return "closed files and sockets that it did not open, such as by os.closerange"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def text_of(file: Any, start: int = 0) -> str:
    """Return a file's content from `start` on, without moving its position, which is shared."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size - start, start).decode(errors="replace")


def frames_of_stack(stack: str) -> list[str]:
    """Return faulthandler's frames of the user's code, the innermost last, as tracebacks do."""
    places = re.findall(r'^  (File ".*", line \d+ in .*)$', stack, re.MULTILINE)
    ours = [i for i, frame in enumerate(places) if str(Path(__file__).parent) in frame]
    frames = places[: ours[0]] if ours else places
    return [
        *["Traceback (most recent call last):"][: len(frames)],
        *(f"  {frame}" for frame in reversed(frames)),
    ]
