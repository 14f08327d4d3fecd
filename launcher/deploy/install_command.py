"""The project's own set-up on a host: the command that runs it there, and what it says."""

import re
import sys

from launcher.remote import agent_bundle

LINE_PREFIX = "[set-up] "
_INSTALL = "docker/install.py"
# The Python of this frontend is tried first: the same everywhere is safer.
_PYTHONS = (f"python{sys.version_info[0]}.{sys.version_info[1]}", *agent_bundle.SYSTEM_PYTHONS)
_SET_UP = """
for python in {pythons}; do
  if "$python" {install} --fits >/dev/null 2>&1; then exec "$python" {install} "$@"; fi
done
for python in {pythons}; do
  if command -v "$python" >/dev/null 2>&1; then exec "$python" {install} "$@"; fi
done
echo "[set-up] there is no Python there: apt-get install python3 python3-venv"
exit 1
"""
# What is to be done about what set-up says.
_REMEDIES = (
    ("reach the package index|resolv|timed out", "--wheelhouse=FOLDER brings the packages along"),
    ("no space left|disk", "make room there, or name a workdir on a larger disk in the CSV"),
)


def install_command(options: list[str]) -> list[str]:
    """In the project's folder: `docker/install.py`, by the first Python that it fits."""
    script = _SET_UP.format(pythons=" ".join(_PYTHONS), install=_INSTALL)
    return ["sh", "-c", script, "set-up", *options]


def failure_reason(output: str) -> str:
    """A sentence, with what to do, from all that a set-up said before it failed."""
    lines = output.strip().splitlines() or ["its set-up said nothing"]
    starts = [i for i, line in enumerate(lines) if line.startswith(LINE_PREFIX)]
    last = lines[starts[-1] :] if starts else lines[-1:]
    sentence = last[0].removeprefix(LINE_PREFIX)
    tail = [line.strip() for line in last[1:] if line.startswith(" ") and line.strip()]
    if sentence.endswith(":") and tail:
        sentence = f"{sentence} {tail[-1]}"
    return f"{sentence}{find_remedy(chr(10).join(last))}"


def find_remedy(output: str) -> str:
    """What to do about what was said, to be put behind it; empty where nobody knows."""
    for pattern, what in _REMEDIES:
        if re.search(pattern, output, re.IGNORECASE):
            return f"; {what}"
    return ""
