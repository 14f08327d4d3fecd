"""Runs one process of a run: starts it again, listens for its heart, keeps its log, obeys orders.

    python -m launcher.node.supervisor TASK.json

It is the program of the process's window. Files in the run's state folder are all that it shares
with others (`task` lists them), so whoever reads them may come and go.
"""

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

from launcher.node import child_process, keyring, procfs
from launcher.node.lease import Lease
from launcher.node.liveness import Heart
from launcher.node.process_output import Output, last_words
from launcher.node.task import FINAL, REFUSED, Task, read_json, write_json

_LONG = 600.0  # seconds: who lived so long has not died again and again
_ORPHAN_SECONDS = 60.0  # that a process waits for its leader to be started
_STATE_SECONDS = 2.0
_LOOK_SECONDS = 0.4  # between looks for orders: a machine may have hundreds of supervisors
_AT_ONCE = 1 << 16  # bytes of output
_LOST = "lost communication with a remote daemon"  # as Open MPI 5 says it
_KEYS_SECONDS = 60.0  # that a frontend has for giving credentials
_KILL_SECONDS = 5.0  # between SIGTERM and SIGKILL


class Supervisor:
    """Of one process."""

    def __init__(self, task: Task):
        self._task, self._run = task, Path(task.folder)
        self._folder = self._run / task.name
        self._output = Output(Path(task.log), task.log_max_mb)
        self._heart, self._usage = Heart(self._folder / "beat"), procfs.Usage()
        self._lease = Lease(self._run / "news", task.lease_secs)
        self._keyring = keyring.Keyring(self._folder) if task.agent else None
        self._born = self._began = time.monotonic()
        self._signals: list[int] = []
        self._process: subprocess.Popen | None = None
        self._order = ""  # "save" or "now"
        self._steps: list[tuple[signal.Signals, float]] = []  # to come: (signal, seconds to obey)
        self._next = 0.0
        self._deaths = 0  # one soon after the other
        self._why = ""  # it was ended by us, for this reason
        self._written = self._looked = 0.0
        self._state: dict[str, Any] = {
            "name": task.name,
            "job": task.job,
            "host": task.host,
            "log": task.log,
            "state": "starting",
            "supervisor": [os.getpid(), procfs.started(os.getpid())],
            "process": None,
            "restarts": 0,
            "failure": None,
        }

    def run(self) -> int:
        """To the end; the exit code."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda number, _: self._signals.append(number))
        self._write()  # first: whoever sees neither task nor state knows that nobody comes
        (self._folder / "task.json").unlink(missing_ok=True)
        child_process.adopt()
        self._wait_for_keys()
        _let_nobody_hold_the_window_up()
        while True:
            self._start()
            code = self._until_it_ends()
            wait = self._seconds_to_the_next(code)
            if wait is None or self._told_to_end(wait):
                break
        state = self._state
        if state["state"] == "waits":  # told to end meanwhile
            self._write(state="stopped")
        self._output.say(f"-- {self._task.name}: {state['state']}, exit code {state['code']} --")
        return int(state["code"])

    def _wait_for_keys(self) -> None:
        """Of other learners' hosts, and writes down how mpirun asks for them."""
        if self._keyring is None:
            return
        keyring.write_agent(self._folder, self._task.agent)
        until = time.monotonic() + _KEYS_SECONDS
        while not self._keyring and not self._order_now() and time.monotonic() < until:
            self._keyring.answer(_LOOK_SECONDS)

    # -- one life of the process

    def _start(self) -> None:
        self._heart.begin()
        self._output.lines.clear()
        self._why = ""
        self._rows = _size(self._task.rows)
        try:
            self._process = child_process.start(self._task)
        except OSError as error:
            self._output.say(f"error: {error.filename or self._task.command[0]}: {error.strerror}")
            self._process = None
            return
        process = [self._process.pid, procfs.started(self._process.pid)]
        self._began = time.monotonic()
        self._write(state="running", process=process, since=time.time())

    def _until_it_ends(self) -> int:
        process = self._process
        if process is None:
            return REFUSED
        assert process.stdout
        pipe = process.stdout.fileno()
        open_still = True
        while process.poll() is None:
            if not open_still:  # it closed what it prints to, and goes on
                time.sleep(_LOOK_SECONDS)
            elif _ready(pipe, _LOOK_SECONDS):
                open_still = self._read(pipe)
            if time.monotonic() - self._looked > _LOOK_SECONDS:  # it may print without end
                self._looked = time.monotonic()
                if self._keyring is not None:
                    self._keyring.answer()
                self._obey(process)
                self._check_heart(process)
                self._write_if_due()
        child_process.end_what_it_left()
        while open_still and _ready(pipe):
            open_still = self._read(pipe)
        process.stdout.close()
        code = child_process.exit_code(process)
        # mpirun calls it well when a host of other learners is lost.
        lost = self._task.agent and any(_LOST in line for line in self._output.lines)
        return 1 if code == 0 and lost else code

    def _read(self, pipe: int) -> bool:
        """Some of what is there, for it may never end; False at its end."""
        content = os.read(pipe, _AT_ONCE)
        self._output.take(content)
        return bool(content)

    def _obey(self, process: subprocess.Popen) -> None:
        """Hands an order on, and more firmly where it is not followed."""
        order = self._order_now()
        if order != self._order:
            self._order, self._next = order, 0.0
            self._steps = [(signal.SIGTERM, _KILL_SECONDS), (signal.SIGKILL, _KILL_SECONDS)]
            saves = order == "save" and _size(self._task.rows) > self._rows
            if saves:
                self._steps.insert(0, (signal.SIGUSR1, self._task.grace_secs))
            self._write(state="saving" if saves else "ending")
        if not order or not self._steps or time.monotonic() < self._next:
            return
        number, patience = self._steps.pop(0)
        self._next = time.monotonic() + patience
        if number == signal.SIGKILL:
            child_process.kill(process)
        else:
            process.send_signal(number)

    def _order_now(self) -> str:
        """What was ordered by now: by a file, by a signal, or by the end of the leader."""
        orders = [_text(self._folder / "stop"), _text(self._run / "stop")]
        if self._task.leader and orders[1] == "save":
            orders[1] = ""  # the learners save first, and their end is ours
        if self._signals:
            orders.append("save" if len(self._signals) == 1 else "now")
        if "now" in orders or self._order == "now":
            return "now"
        over = "save" in orders or self._leader_is_over()
        # Without its folder it could not be told anything any more.
        return "save" if over or not self._folder.exists() else self._order

    def _leader_is_over(self) -> bool:
        if not self._task.leader:
            return False
        if self._task.lease_secs:
            return self._lease.is_over(self._heart.frames())
        leader = read_json(self._run / self._task.leader / "state.json")
        if not leader:  # not there yet, or never
            return time.monotonic() - self._born > _ORPHAN_SECONDS
        return leader["state"] in FINAL or not procfs.lives(leader["supervisor"])

    def _check_heart(self, process: subprocess.Popen) -> None:
        silent, who = self._heart.look()
        if not self._task.stall_secs or silent < self._task.stall_secs or self._order or self._why:
            return
        which = f"{who} of it" if who else "it"
        self._why = f"{which} hangs: nothing was heard from it for {self._task.stall_secs:g} s"
        self._output.say(self._why)
        child_process.kill(process)

    # -- between two lives

    def _seconds_to_the_next(self, code: int) -> float | None:
        """None: there is none."""
        lived = time.monotonic() - self._began
        self._output.end_line()
        unsaved = self._state["state"] == "saving" and self._order == "save" and code != 0
        self._write(process=None, code=code)
        if unsaved:
            self._why = (
                f"it was to save, and {child_process.ended_by(code)}; what was saved before is good"
            )
            self._write(state="failed", failure=self._failure(code, "the run ends with it"))
            return None
        if self._order:
            self._write(state="stopped")
            return None
        if code == 0 and not self._task.leader:
            self._write(state="ended")
            return None
        self._deaths = 1 if lived > _LONG else self._deaths + 1
        again = self._deaths <= self._task.restarts and code != REFUSED
        wait = min(0.5 * 2 ** min(self._deaths - 1, 6), 30.0)
        follows = f"it starts again in {wait:g} s" if again else self._gives_up(code)
        failure = self._failure(code, follows)
        restarts = self._state["restarts"] + again
        self._write(state="waits" if again else "failed", failure=failure, restarts=restarts)
        return wait if again else None

    def _failure(self, code: int, follows: str) -> dict[str, Any]:
        """For where the user sits; said here, too."""
        failure = {
            "time": time.time(),
            "code": code,
            "why": self._why or child_process.ended_by(code),
            "lines": last_words(list(self._output.lines)),
            "next": follows,
        }
        self._output.say(f"{failure['why']}; {follows}")
        return failure

    def _gives_up(self, code: int) -> str:
        if not self._task.leader:
            return "the run ends with it"
        if code == REFUSED:
            return "it stays away: starting it again would not help"
        return f"it stays away, after {self._deaths} deaths one soon after the other"

    def _told_to_end(self, seconds: float) -> bool:
        """Waits."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self._order_now():
                return True
            time.sleep(0.1)
            self._write_if_due()
        return False

    # -- what others read

    def _write_if_due(self) -> None:
        if time.monotonic() - self._written > _STATE_SECONDS:
            cpu, memory = self._usage.measure()
            rate = self._heart.frames_per_second()
            silent = round(self._heart.look()[0], 1)
            self._write(cpu=round(cpu), memory=round(memory), frames_per_second=rate, silent=silent)

    def _write(self, **news: Any) -> None:
        last = self._output.lines[-1][:300] if self._output.lines else ""
        self._state |= news | {"last": last, "time": time.time()}
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk costs news, not the process
            write_json(self._folder / "state.json", self._state)


def _ready(pipe: int, seconds: float = 0.0) -> bool:
    return bool(select.select([pipe], [], [], seconds)[0])


def _let_nobody_hold_the_window_up() -> None:
    """Ctrl-S in the window would stop what writes to it: this process, and training with it."""
    with contextlib.suppress(termios.error, OSError):
        settings = termios.tcgetattr(1)
        settings[0] &= ~termios.IXON
        termios.tcsetattr(1, termios.TCSANOW, settings)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path).st_size if path else 0
    return 0


def main(path: Path) -> int:
    """Of the task in `path`; there is never a second supervisor of the same name."""
    content = read_json(path)
    if not content:
        print(f"{path} is no task (or was taken)", file=sys.stderr)
        return REFUSED
    task = Task(**content)
    lock = os.open(path.with_name("lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"{task.name} has a supervisor already", file=sys.stderr)
        return REFUSED
    return Supervisor(task).run()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
