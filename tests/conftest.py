"""What several tests need: the project's folder, and processes of it that never outlive a test."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOROVOD = (Path(sys.executable).parent / "horovodrun").exists()


def run(*command: object, cwd: Path = ROOT, limit: int = 100, **env: str) -> tuple[int, str]:
    """A real process, to its end: (exit code, what it printed). Its whole group is ended."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, printed


needs_horovod = pytest.mark.skipif(not HOROVOD, reason="Horovod is not built here: make horovod")


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
