"""Runs mpirun's daemon on another learners' host: a process of the run, as every other.

    launcher.supervise.mpi_host ADDRESS PREFIX PORT

It connects to the first learner's host, where `mpi_agent` waits at that port, and starts the daemon
with mpirun's words, but Open MPI in the folder PREFIX of this host. It ends the daemon and its
ranks when the connection ends, and connects again: learners that are restarted have another mpirun.
"""

import contextlib
import json
import os
import select
import shlex
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

from launcher.supervise import child_process, mpi_agent
from launcher.supervise.task import HEARTBEAT

_RETRY_SECONDS = 0.1  # seconds between attempts to connect to mpirun's agent
_CHECK_SECONDS = 0.3
_KILL_SECONDS = 2.0  # seconds between SIGTERM and SIGKILL
_SEND_SECONDS = 5.0  # timeout for mpirun's agent to take the daemon's output
_READ_BYTES = 1 << 16  # bytes of the daemon's output that are read at once
# The daemon checks that mpirun's agent exists here, too, though it never runs it.
_AGENT, _EXISTING_PROGRAM = "plm_ssh_agent", "/bin/sh"


def serve(address: str, port: int, prefix: str) -> None:
    """Run the daemon of one mpirun after the other, for ever."""
    said = ""
    while True:
        mpi_agent.set_waiting(address, True)
        try:
            with mpi_agent.connect(address, port, os.environ[mpi_agent.TOKEN_VARIABLE]) as agent:
                if line := agent.makefile("rb").readline():
                    said = ""
                    _forget_ranks()
                    mpi_agent.set_waiting(address, False)
                    _run_daemon(agent, json.loads(line)["command"], prefix)
        except OSError as error:
            if str(error) != said:
                said = str(error)
                print(f"waiting for the learners' mpirun at {address}:{port} ({said})", flush=True)
        time.sleep(_RETRY_SECONDS)


def _forget_ranks() -> None:
    """Remove the heartbeats of the last ranks: those of the next ones take a while to come."""
    if beat := os.environ.get(HEARTBEAT):
        for path in Path(beat).parent.glob(f"{Path(beat).name}*"):
            path.unlink()


def _run_daemon(connection: ssl.SSLSocket, command: str, prefix: str) -> None:
    """Run the daemon until it ends, or the connection does, and kill what it leaves."""
    words = shlex.split(command)
    program = next((i for i, word in enumerate(words) if word.endswith("prted")), None)
    if program is None:
        _send(connection, output=f"error: no daemon of Open MPI 5: {command}\n", code=127)
        return
    arguments = [word for word in words[program + 1 :] if word != "--daemonize"]
    if _AGENT in arguments:
        arguments[arguments.index(_AGENT) + 1] = _EXISTING_PROGRAM
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    variables = {
        "PRTE_PREFIX": prefix,
        **{name: prefix for name in ("PMIX_PREFIX", "OPAL_PREFIX") if f"{name}=" in command},
        "LD_LIBRARY_PATH": f"{prefix}/lib:{libraries}".rstrip(":"),
    }
    try:
        daemon = child_process.start(
            [f"{prefix}/bin/prted", *arguments],
            dict(os.environ) | variables,
            workdir=str(Path.home()),
            death_signal=signal.SIGTERM,  # by which it ends its ranks
        )
    except OSError as error:
        _send(connection, output=f"error: {error.filename}: {error.strerror}\n", code=127)
        return
    while daemon.poll() is None and _pass_on(daemon, connection):
        pass
    daemon.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it is killed
        daemon.wait(_KILL_SECONDS)
    child_process.kill_tree(daemon)
    daemon.wait()
    child_process.kill_orphans()
    _pass_on(daemon, connection)  # why it ended
    assert daemon.stdout
    daemon.stdout.close()
    code = child_process.exit_code(daemon)
    print(f"mpirun's daemon {child_process.describe_exit(code)}", flush=True)
    _send(connection, output="", code=code)


def _pass_on(daemon: subprocess.Popen, connection: ssl.SSLSocket) -> bool:
    """Pass on what the daemon prints; return whether mpirun's agent is still connected."""
    assert daemon.stdout
    output = daemon.stdout.fileno()
    ready, _, _ = select.select([output, connection.fileno()], [], [], _CHECK_SECONDS)
    if output in ready:
        if content := os.read(output, _READ_BYTES):
            os.write(1, content)
            _send(connection, output=content.decode(errors="replace"))
        else:  # it has closed its output
            time.sleep(_CHECK_SECONDS)
    if connection.fileno() in ready:
        connection.setblocking(False)
        try:
            return bool(connection.recv(1))  # it sends nothing but its end
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        except OSError:
            return False
    return True


def _send(connection: ssl.SSLSocket, **message: str | int) -> None:
    with contextlib.suppress(OSError):  # the agent is gone, which `_pass_on` notices
        connection.settimeout(_SEND_SECONDS)
        connection.sendall(mpi_agent.encode(message))


if __name__ == "__main__":
    # The first process of a container is not ended by a signal without a handler.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child_process.adopt_orphans()
    serve(sys.argv[1], int(sys.argv[3]), sys.argv[2])
