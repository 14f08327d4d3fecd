"""The program that starts the agent on another host, run by a shell of this one."""

import os
import shutil
import subprocess

import pytest

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
