"""The program that starts the agent on another host, run by a shell of this one."""

import os
import shutil
import subprocess
import sys

import pytest
from processes import ROOT

from launcher.hosts import agent_bundle
from launcher.supervise.agent_main import READY_LINE


def _start(shell, pythons, state_folder):
    return subprocess.run(
        [shell, "-c", agent_bundle.start_command(pythons)],
        input=agent_bundle.bundle_header("impala") + agent_bundle.bundle(),
        env=os.environ | {"XDG_STATE_HOME": str(state_folder)},
        capture_output=True,
        check=False,
        timeout=30,
    )


def test_the_start_is_one_line_that_no_shell_expands():
    command = agent_bundle.start_command(["~/it's/bin/python", "$HOME/a b/python"])
    assert "\n" not in command
    assert "!" not in command, "csh takes it for an earlier command, also within quotes"
    assert "\\" not in command, "fish takes it for an escape within single quotes"


@pytest.mark.parametrize("shell", ["sh", "bash", "csh", "tcsh", "fish", "zsh"])
def test_the_agent_starts_in_a_login_shell_of_any_kind(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    ran = _start(shell, ["~/it's/bin/python"], tmp_path)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert ran.stdout.decode().splitlines()[0] == READY_LINE


def test_a_state_folder_that_a_host_cannot_write_is_named_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    ran = _start("sh", [], tmp_path / "file")
    assert ran.returncode == 1
    said = f"{tmp_path}/file/impala_mm cannot be written (Not a directory); set XDG_STATE_HOME"
    assert ran.stderr.decode().startswith(said)
    assert ran.stderr.count(b"\n") == 1


_COMMAND = """
import sys
sys.path[0] = sys.argv[1]
from launcher.supervise import programs
print(*programs.command_of("supervisor", "no task"), sep="\\n")
"""


@pytest.mark.parametrize("is_archive", [True, False])
def test_a_program_runs_from_the_archive_as_from_a_clone_in_any_folder(is_archive, tmp_path):
    """The folder may have modules with names of Python's own."""
    archive = tmp_path / "far.zip"
    archive.write_bytes(agent_bundle.bundle())
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    ask = [sys.executable, "-ESc", _COMMAND, archive if is_archive else ROOT]
    command = subprocess.check_output(ask, text=True).splitlines()
    assert command[0] == sys.executable
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = "no task holds no task, or a supervisor has already taken it\n"
    assert (ran.returncode, ran.stderr) == (2, said)
