"""The program of a window, in a terminal of its own; the processes that it shows are real."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios

import pytest
from deadlines import Deadline
from processes import ROOT, wait
from supervising import Supervised

STAYS = [
    *(sys.executable, "-uSc"),
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda n, _: (print('got', n), sys.exit(0)))\n"
    "print('\\x1b[31mred\\x1b[0m')\n"
    "print('\\x1b]52;c;cm0=\\x07\\x1b[2J')\n"
    "print('up')\n"
    "time.sleep(60)",
]


class Terminal:
    """A terminal in which the window of a process runs."""

    def __init__(self, folder):
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-ES", "-m", "launcher.supervise.window", folder],
            cwd=ROOT,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(theirs)
        self.shown = ""

    def until(self, text, seconds=10.0):
        """Wait until the window has shown a text."""
        deadline = Deadline(seconds)
        while text not in self.shown:
            assert not deadline.is_over(), self.shown
            if select.select([self._ours], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):  # the window's program has ended
                    self.shown += os.read(self._ours, 1 << 16).decode()

    def type(self, keys):
        """Type keys."""
        os.write(self._ours, keys.encode())

    def end(self):
        """Close the terminal, and wait for the end of its program."""
        os.close(self._ours)
        wait(self.process, 10)


@pytest.fixture
def shown(tmp_path):
    """Return a function that starts a process under a supervisor, and its window."""
    made = []

    def show(command, **changes):
        supervised = Supervised(tmp_path, command, **changes)
        made.append(supervised)
        made.append(Terminal(supervised.folder))
        return supervised, made[-1]

    yield show
    for each in reversed(made):
        with contextlib.suppress(OSError):
            each.end()


def test_a_window_shows_the_log_in_colour_alone_and_how_the_process_ended(shown):
    supervised, window = shown(STAYS, name="actor-0", log_max_mb=1.0)
    window.until("\x1b[31mred\x1b[0m\r\n\\x1b]52;c;cm0=\\x07\\x1b[2J\r\nup\r\n")
    supervised.log.replace(supervised.log.with_name("actor-0.log.1"))  # as when it grows too long
    (supervised.folder / "stop").write_text("now")
    window.until("-- actor-0: stopped --")
    assert wait(window.process, 5) == 0
    assert "got 15" in window.shown


def test_a_window_of_a_long_log_begins_some_screenfuls_before_its_end(shown, tmp_path):
    (tmp_path / "actor-0.log").write_text("".join(f"{i:0100}\n" for i in range(5000)))
    _, window = shown(STAYS, name="actor-0")
    window.until("up")
    assert 100 < window.shown.count("\r\n") < 700
    assert f"{4999:0100}" in window.shown


def test_ctrl_c_says_what_it_would_do_and_a_second_one_does_it(shown):
    supervised, window = shown(STAYS, name="actor-0", restarts=9)
    window.until("up")
    window.type("\x03")
    window.until("-- Ctrl-C again within 5 s stops actor-0 for good")
    assert not (supervised.folder / "stop").exists()
    assert supervised.state["state"] == "running"
    window.type("\x03")
    window.until("-- actor-0: stopped --")
    assert supervised.wait() == 0


def test_ctrl_c_in_the_window_of_the_learners_saves_and_then_ends_the_run(shown, tmp_path):
    stubborn = [
        *STAYS[:2],
        "import signal, time; signal.signal(10, lambda *_: print('saving'))\n"
        "open('rows', 'w').write('x'); print('up')\nwhile True: time.sleep(1)",
    ]
    supervised, window = shown(stubborn, rows=str(tmp_path / "rows"), grace_secs=60.0)
    window.until("up")
    window.type("\x03")
    window.until("-- Ctrl-C again within 5 s saves and stops the run --")
    window.type("\x03")
    window.until("\nsaving")
    assert supervised.state["state"] == "saving"
    window.type("\x03")
    window.until("-- Ctrl-C again within 5 s ends the run without saving --")
    window.type("\x03")
    window.until("-- learners: stopped --")
    assert supervised.wait() == 143, "SIGTERM ended it at once"


def test_a_closed_terminal_and_sighup_do_not_end_a_process(shown):
    supervised, window = shown(STAYS, name="actor-0")
    window.until("up")
    window.end()
    assert window.process.returncode == -signal.SIGHUP
    supervised.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        supervised.process.wait(1.5)
    assert supervised.state["state"] == "running"


def test_a_window_says_that_the_supervisor_was_killed(shown):
    supervised, window = shown(STAYS, name="actor-0")
    window.until("up")
    supervised.process.kill()
    window.until("-- actor-0: its supervisor was killed or crashed --", 5)
    assert wait(window.process, 5) == 0
