"""The program that starts the agent on another host, run by a shell of this one."""

import os
import subprocess

from launcher.remote import agent_bundle


def test_a_state_folder_that_a_host_cannot_write_is_named_in_a_sentence(tmp_path):
    (tmp_path / "file").touch()
    ran = subprocess.run(
        ["sh", "-c", agent_bundle.start_command([])],
        input=agent_bundle.bundle_header("impala") + agent_bundle.bundle(),
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path / "file")},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.decode().splitlines() == [
        f"{tmp_path}/file/impala_mm cannot be written (Not a directory); set XDG_STATE_HOME on "
        f"that host"
    ]
