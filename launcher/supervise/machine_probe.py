"""Facts, programs and links of a machine, which a frontend needs with or without a run there.

Like `local_node` it is called directly, or through `agent_main` on another host, with JSON types.
"""

import contextlib
import getpass
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from launcher.supervise import (
    bandwidth,
    child_process,
    mpi_agent,
    mpirun,
    programs,
    run_registry,
    tmux,
)
from launcher.supervise.callbacks import OnLine
from launcher.supervise.task import SAVE_REQUEST

_MAX_PORTS = 1000  # that `free_ports` tries
_OUTPUT_SECONDS = 2.0  # timeout for the output of a program that has ended


class MachineProbe:
    """A machine: its facts, programs, files and links to others."""

    def __init__(self, run: run_registry.Run):
        """Probe this machine for `run`, which need not exist."""
        self._run = run
        self._servers: list[bandwidth.BandwidthServer] = []
        self._programs: set[subprocess.Popen] = set()

    def facts(self, roots: list[str], pythons: list[str]) -> dict[str, Any]:
        """Return facts of the machine, and of the project's clone in the first of `roots` with one.

        Relative paths begin at the user's home.
        """
        bases = [os.path.join(Path.home(), os.path.expanduser(root)) for root in roots]
        base = next((each for each in bases if _has_project(each)), bases[0] if bases else "")
        named = [each if "/" not in each else os.path.join(base, each) for each in pythons]
        python = next(filter(None, map(shutil.which, named)), "")
        return {
            "host": socket.gethostname(),
            "user": getpass.getuser(),
            "uid": os.getuid(),
            "root": base,
            "project": _has_project(base),
            "python": python,
            "mpirun": mpirun.find(python),
            "folder": str(self._run.folder),
            "own_python": [sys.executable, platform.python_version()],
            "tmux": bool(tmux.default_socket()),
            "stays": programs.staying_command() is not None,
            "cores": len(os.sched_getaffinity(0)),
            "time": time.time(),
            "runs": run_registry.running_from_elsewhere(),
        }

    def run_program(
        self,
        command: list[str],
        workdir: str = "",
        environment: dict[str, str] | None = None,
        seconds: float = 60.0,
        on_line: OnLine | None = None,
    ) -> tuple[int, str]:
        """Run a program; return its exit code and output, or an error as its output.

        `on_line` receives each line as it is printed. What the program has left behind in its
        process group is killed.
        """
        command, variables = programs.complete(command, environment or {})
        try:
            program = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=workdir or None,
                env=os.environ | variables,
                start_new_session=True,
            )
        except OSError as error:
            return 127, f"{error.filename or command[0]}: {error.strerror}\n"
        printed: list[str] = []
        reader = threading.Thread(target=_read, args=(program, printed, on_line), daemon=True)
        self._programs.add(program)
        reader.start()
        try:
            program.wait(seconds)
        except subprocess.TimeoutExpired:
            return 124, f"{command[0]} did not finish within {seconds:g} s\n"
        finally:  # what it has left behind may hold its output open
            child_process.kill_group(program)
            reader.join(_OUTPUT_SECONDS)
            program.poll()  # so that one that was killed leaves no zombie
            self._programs.discard(program)
        return child_process.exit_code(program), "".join(printed)

    def kill_programs(self) -> None:
        """Kill the programs that are still running: their caller is gone."""
        for program in list(self._programs):
            child_process.kill_group(program)

    def disk_space(self, path: str) -> tuple[str, int, bool]:
        """Return the nearest existing folder, its free bytes, and whether it can be written to."""
        base = Path(path)
        existing = next(each for each in (base, *base.parents) if each.exists())
        return str(existing), shutil.disk_usage(existing).free, os.access(existing, os.W_OK)

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists."""
        return Path(path).exists()

    def request_checkpoint(self, folder: str) -> None:
        """Let the learners that write to a run's folder save a checkpoint. Raises OSError."""
        (Path(folder) / SAVE_REQUEST).touch()

    describe_writer = staticmethod(run_registry.describe_writer)
    measure_bandwidth = staticmethod(bandwidth.measure)

    def file_service_command(self) -> list[str]:
        """Return the command that serves this machine's files (`file_service`)."""
        return programs.command_of("file_service")

    def resolve(self, host: str) -> list[str]:
        """Return the IPv4 addresses of a host name, looked up on this machine."""
        with contextlib.suppress(OSError):  # no server of names knows it
            return [str(each[4][0]) for each in socket.getaddrinfo(host, 0, socket.AF_INET)]
        return []

    def start_bandwidth_server(self, address: str, port: int) -> int:
        """Listen for `measure_bandwidth` of another host, and return the port. Raises OSError.

        Port 0 stands for the first free one that a learner would take.
        """
        self._servers.append(bandwidth.BandwidthServer(address, port))
        return self._servers[-1].port

    def stop_bandwidth_servers(self) -> None:
        """Stop all servers that `start_bandwidth_server` started."""
        for listener in self._servers:
            listener.close()
        self._servers.clear()

    def free_ports(self, address: str, count: int) -> list[int]:
        """Return the first free ports of an address, where mpirun's agents wait for other hosts."""
        found: list[int] = []
        for port in range(mpi_agent.FIRST_PORT, mpi_agent.FIRST_PORT + _MAX_PORTS):
            if len(found) < count:
                with contextlib.suppress(OSError), mpi_agent.listen(address, port):  # it is taken
                    found.append(port)
        return found


def _has_project(folder: str) -> bool:
    return Path(folder, "experiment.py").exists()


def _read(program: subprocess.Popen, printed: list[str], on_line: OnLine | None) -> None:
    """Read what a program prints until its output is closed."""
    assert program.stdout
    try:
        for line in program.stdout:
            printed.append(line)
            if on_line:
                on_line(line.rstrip("\n"))
    except OSError:  # the connection to whoever listens is lost
        child_process.kill_group(program)
