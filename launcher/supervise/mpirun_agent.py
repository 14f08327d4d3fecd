"""Starts mpirun's daemon on another learner's host: mpirun calls this program instead of ssh.

    python -m launcher.supervise.mpirun_agent FOLDER HOST COMMAND...

FOLDER holds `daemons.json`: this host's credentials, and where the supervisors of the other
learners' hosts listen (`daemon_supervisor`). The program runs as long as the daemon, and prints
what the daemon prints. Its exit code is the daemon's; 255 if the daemon could not be started, or
the connection was lost.
"""

import concurrent.futures
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.supervise import order_channel, programs
from launcher.supervise.json_files import fits, read_json, write_json

SECONDS = 5.0  # timeout of a connection and of an answer to a short order
_FILE, _SCRIPT = "daemons.json", "agent"
_FAILED = 255  # ssh's exit code for its own failures


def write(folder: Path, credentials: str, supervisors: dict[str, dict[str, Any]]) -> Path:
    """Write the program that mpirun calls, and what it needs; return its path.

    `supervisors`: by address of the host {"port": ..., "id": ...}; empty if it could not be
    started yet.
    """
    write_json(folder / _FILE, {"credentials": credentials, "supervisors": supervisors})
    script = folder / _SCRIPT
    command = shlex.join(programs.command_of("mpirun_agent", folder))
    script.write_text(
        f'#!/bin/sh\ncd {shlex.quote(str(programs.working_folder()))} && exec {command} "$@"\n'
    )
    script.chmod(0o700)
    return script


def read(folder: Path) -> dict[str, Any]:
    """Return what `write` has written; empty if nothing has."""
    return read_json(folder / _FILE)


def find_silent(known: dict[str, Any]) -> list[str]:
    """Return the hosts whose supervisor does not answer; `known` comes from `read`."""
    return [host for host, answers in _order_all(known, "ping").items() if not answers]


def end_supervisors(known: dict[str, Any]) -> None:
    """End the supervisors of all hosts that answer: the run is over."""
    _order_all(known, "end")


def _order_all(known: dict[str, Any], order: str) -> dict[str, bool]:
    """Give a short order to all hosts at once; return whether their supervisors accepted it."""
    hosts = list(known["supervisors"]) if fits(known.get("supervisors"), dict[str, Any]) else []
    if not hosts:
        return {}
    with concurrent.futures.ThreadPoolExecutor(len(hosts)) as pool:
        return dict(
            zip(hosts, pool.map(lambda host: _answers(known, host, order), hosts), strict=True)
        )


def _answers(known: dict[str, Any], host: str, order: str) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return any("ready" in reply for reply in _send(known, host, {"order": order}, SECONDS))
    return False


def _send(
    known: dict[str, Any], host: str, order: dict[str, Any], seconds: float | None
) -> Iterator[dict[str, Any]]:
    """Send an order to a host's supervisor, and yield the replies.

    `seconds`: timeout for each reply. Raises OSError and ValueError, and KeyError or TypeError if
    `known` lacks the supervisor.
    """
    supervisor = known["supervisors"][host]
    with order_channel.connect(host, supervisor, known["credentials"], SECONDS) as connection:
        connection.sendall(order_channel.encode(order | {"id": supervisor["id"]}))
        connection.settimeout(seconds)
        for line in connection.makefile("rb"):
            yield json.loads(line)


def main(folder: str, host: str, *command: str) -> int:
    """Start the daemon by a host's supervisor; return its exit code once it has ended."""
    known = read(Path(folder))
    why = "it ended the connection"
    try:
        for reply in _send(known, host, {"order": "start", "line": " ".join(command)}, None):
            if "code" in reply:
                return int(reply["code"])
            if "refused" in reply:
                print(f"error: {host} refused mpirun's order: {reply['refused']}", file=sys.stderr)
                return _FAILED
            os.write(1, reply.get("output", "").encode(errors="replace"))
    except (OSError, ValueError) as error:
        why = str(error)
    except (KeyError, TypeError):
        why = "no frontend has started it"
    print(f"error: the supervisor of mpirun's daemon on {host} is lost: {why}", file=sys.stderr)
    return _FAILED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
