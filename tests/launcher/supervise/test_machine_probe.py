"""Programs that a frontend runs on a machine: they end in time, with all that they started."""

import os
import shlex
import signal
import time
from pathlib import Path

import pytest
from supervising import until

from launcher.supervise.machine_probe import MachineProbe
from launcher.supervise.run_registry import Run


def _run(folder, script, **options):
    begin = time.monotonic()
    code, printed = MachineProbe(Run("night", folder)).run_program(["sh", "-c", script], **options)
    return code, printed, time.monotonic() - begin


def _is_running(pid_file):
    return Path(f"/proc/{pid_file.read_text().strip()}/exe").exists()


@pytest.mark.parametrize("detached", ["", "setsid "])
def test_a_program_in_the_background_does_not_hold_up_its_caller(tmp_path, detached):
    """A --setup may start one, such as Xvfb."""
    own = shlex.quote(f"{tmp_path}/pid")
    background = f"{detached}sh -c 'echo $$ > {own}; exec sleep 60' &"
    wait = f"until [ -s {own} ]; do sleep 0.02; done"
    code, printed, seconds = _run(tmp_path, f"{background} {wait}; echo a; echo b >&2; exit 3")
    assert (code, printed) == (3, "a\nb\n")
    assert seconds < 20
    if detached:  # it has left the process group, and belongs to the user
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    until(lambda: not _is_running(tmp_path / "pid"), 5)


def test_a_program_that_takes_too_long_ends_with_what_it_started(tmp_path):
    own = shlex.quote(f"{tmp_path}/pid")
    script = f"sh -c 'echo $$ > {own}; exec sleep 60' & wait"
    code, printed, seconds = _run(tmp_path, script, seconds=1)
    assert (code, printed) == (124, "sh did not finish within 1 s\n")
    assert seconds < 20
    until(lambda: not _is_running(tmp_path / "pid"), 5)


def test_lines_are_passed_on_as_they_come_and_a_lost_listener_ends_the_program(tmp_path):
    said = []
    assert _run(tmp_path, "echo a; echo b", on_line=said.append)[:2] == (0, "a\nb\n")
    assert said == ["a", "b"]

    def lost(line):
        raise BrokenPipeError

    code, _, seconds = _run(tmp_path, "echo a; exec sleep 60", on_line=lost)
    assert code == 137
    assert seconds < 20
