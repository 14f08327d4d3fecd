"""The project's own set-up on a host: its command, and what its output means."""

import re
import sys

from launcher.plan import project
from launcher.remote import agent_bundle

LINE_PREFIX = "[set-up] "
_INSTALL = "docker/install.py"
# The frontend's version of Python is tried first: the same version everywhere is safer.
_PYTHONS = (f"python{sys.version_info[0]}.{sys.version_info[1]}", *agent_bundle.SYSTEM_PYTHONS)
_SET_UP = """
for python in {pythons}; do
  if "$python" {install} --fits >/dev/null 2>&1; then exec "$python" {install} "$@"; fi
done
for python in {pythons}; do
  if command -v "$python" >/dev/null 2>&1; then exec "$python" {install} "$@"; fi
done
echo "[set-up] this host has no Python: apt-get install python3 python3-venv"
exit 1
"""
# Remedies by a pattern in the output of set-up.
_REMEDIES = (
    (
        "reach the package index|resolv|timed out",
        f"--wheelhouse=FOLDER copies the packages to the host, and `{project.FILL_WHEELHOUSE}` "
        "makes that folder here",
    ),
    (
        "no space left|disk",
        "free space on that host, or name a workdir on a larger disk in the CSV",
    ),
)


def install_command(options: list[str]) -> list[str]:
    """Return the command that runs `docker/install.py` with the first Python that suits it.

    It must run in the project's folder.
    """
    script = _SET_UP.format(pythons=" ".join(_PYTHONS), install=_INSTALL)
    return ["sh", "-c", script, "set-up", *options]


def failure_reason(output: str) -> str:
    """Return the reason and the remedy, in a sentence, from the output of a set-up that failed."""
    lines = output.strip().splitlines() or ["its set-up printed nothing"]
    starts = [i for i, line in enumerate(lines) if line.startswith(LINE_PREFIX)]
    last = lines[starts[-1] :] if starts else lines[-1:]
    sentence = last[0].removeprefix(LINE_PREFIX)
    tail = [line.strip() for line in last[1:] if line.startswith(" ") and line.strip()]
    if sentence.endswith(":") and tail:
        sentence = f"{sentence} {tail[-1]}"
    return f"{sentence}{find_remedy(chr(10).join(last))}"


def find_remedy(output: str) -> str:
    """Return the remedy for an error, to be appended to it; empty if none is known."""
    for pattern, what in _REMEDIES:
        if re.search(pattern, output, re.IGNORECASE):
            return f"; {what}"
    return ""
