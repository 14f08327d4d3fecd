"""Another program's steps per second, read from its output, for `throughput.py --peer`.

A program counts in one of two ways; the name of the pattern's group says which:

    (?P<steps>...)     the number of steps since its start
    (?P<average>...)   its mean rate since its start, one line per update: CleanRL's `SPS: N`

A mean since the start includes the slow start. The steps so far are this mean times the time since
the start, which is not printed. But every update makes the same number of steps B, so for line k
k x B = mean_k x (t_k - t_0); a least-squares fit over all lines gives B and t_0.
"""

import os
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import thread_cpu

_MIN_LINES_IN_WINDOW = 3  # counting lines within the measured window
_MIN_LINES = 6  # counting lines in all, if they are means since the start


class LinePattern(NamedTuple):
    """The pattern of a program's lines that count steps."""

    expression: str  # a regular expression with a group `steps` or `average`
    divisor: float  # printed units per step: 4 if the program counts Atari's frames


# Sample Factory counts frames including skipped ones, unless --summaries_use_frameskip=False.
KNOWN_PATTERNS = (
    LinePattern(r"SPS: (?P<average>[\d.]+)", 1.0),
    LinePattern(r"F[Pp][Ss] is \(10 sec: .*Total num frames: (?P<steps>\d+)", 4.0),
)


class CountedLine(NamedTuple):
    """One line of output that counts steps."""

    time: float  # seconds of a monotonic clock
    value: float
    is_average: bool  # whether it is a mean rate since the start, else a count


class PeerProgram(NamedTuple):
    """A program to compare this one with."""

    name: str
    command: str  # a shell command line
    patterns: tuple[LinePattern, ...]


class PeerMeasurement(NamedTuple):
    """The speed and the CPU time of a peer in its last seconds."""

    steps: float  # per second
    cores: float  # CPU seconds per second of all its processes
    last: str  # the last line of its output


class PeerFailed(Exception):
    """Raised if a peer exited or printed too few counting lines; the message gives the reason."""


def parse_peers(
    given: Sequence[str], expressions: Sequence[str], divides: Sequence[str]
) -> list[PeerProgram]:
    """Parse NAME=COMMAND, NAME=REGEX and NAME=NUMBER; raise ValueError for invalid ones."""
    commands = _parse_pairs(given, "--peer")
    patterns_by_name = _parse_pairs(expressions, "--peer_pattern")
    divisors_by_name = _parse_pairs(divides, "--peer_divide")
    for name in [*patterns_by_name, *divisors_by_name]:
        if name not in commands:
            raise ValueError(f"--peer_pattern or --peer_divide names {name}, but no --peer does")
    peers = []
    for name, command in commands.items():
        patterns = KNOWN_PATTERNS
        if name in patterns_by_name:
            if not {"steps", "average"} & re.compile(patterns_by_name[name]).groupindex.keys():
                raise ValueError(
                    f"--peer_pattern={name}=... needs a group (?P<steps>...) for a count or "
                    f"(?P<average>...) for a mean rate since the start"
                )
            patterns = (LinePattern(patterns_by_name[name], 1.0),)
        if name in divisors_by_name:
            patterns = tuple(p._replace(divisor=float(divisors_by_name[name])) for p in patterns)
        peers.append(PeerProgram(name, command, patterns))
    return peers


def _parse_pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in given)
    for name, value in found.items():
        if not name or not value:
            raise ValueError(f"{flag}={name}: it must have the form NAME=VALUE")
    return found


def parse_line(
    text: str, received_at: float, patterns: Sequence[LinePattern]
) -> CountedLine | None:
    """Parse a line of output; return None if it counts no steps."""
    for pattern in patterns:
        if found := re.search(pattern.expression, text):
            groups = found.groupdict()
            is_average = "average" in groups
            value = float(groups["average" if is_average else "steps"])
            return CountedLine(received_at, value / pattern.divisor, is_average)
    return None


def cumulative_steps(lines: Sequence[CountedLine]) -> np.ndarray:
    """Return the number of steps at each line, up to a constant."""
    if not lines[0].is_average:
        return np.array([line.value for line in lines])
    times = np.array([line.time for line in lines]) - lines[0].time
    rates = np.array([line.value for line in lines])
    number = np.arange(1, len(lines) + 1)
    # k B = rate_k (t_k - t_0), or B k + t_0 rate_k = rate_k t_k.
    update, _ = np.linalg.lstsq(np.stack([number, rates], 1), rates * times, rcond=None)[0]
    return number * update


def recent_rate(lines: Sequence[CountedLine], seconds: float) -> float:
    """Return the steps per second over the last seconds; raise PeerFailed if lines are too few."""
    lines = [line for line in lines if line.is_average == lines[-1].is_average] if lines else []
    window = [line for line in lines if line.time >= lines[-1].time - seconds]
    if len(window) < _MIN_LINES_IN_WINDOW or (lines[-1].is_average and len(lines) < _MIN_LINES):
        raise PeerFailed(f"{len(lines)} counting lines are too few")
    steps = cumulative_steps(lines)
    first = len(lines) - len(window)
    return float((steps[-1] - steps[first]) / (lines[-1].time - lines[first].time))


def measure_peer(
    peer: PeerProgram, seconds: float, warm_up: float, timeout: float = 300.0
) -> PeerMeasurement:
    """Start a peer, wait for its first counting line and `warm_up` seconds, and measure it.

    The measurement of a slow peer takes longer: until it has printed enough lines.
    """
    process = subprocess.Popen(
        shlex.split(peer.command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"},  # lines arrive when they are printed
        start_new_session=True,
    )
    lines: list[CountedLine] = []
    output: list[str] = []
    thread = threading.Thread(target=_read_output, args=(process, peer, lines, output), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + timeout
        while not lines:
            if not thread.is_alive():
                raise PeerFailed("\n".join([f"{peer.name} exited: {peer.command}", *output[-5:]]))
            if time.monotonic() > deadline:
                raise PeerFailed(f"{peer.name} printed no counting line within {timeout:.0f} s")
            time.sleep(0.1)
        time.sleep(warm_up)
        began, cpu = time.monotonic(), thread_cpu.session_cpu_seconds(process.pid)
        while thread.is_alive() and time.monotonic() < began + timeout:
            new_lines = sum(line.time > began for line in list(lines))
            enough = new_lines >= _MIN_LINES_IN_WINDOW and len(lines) >= _MIN_LINES
            if enough and time.monotonic() - began >= seconds:
                break
            time.sleep(0.1)
        elapsed = time.monotonic() - began
        cores = (thread_cpu.session_cpu_seconds(process.pid) - cpu) / elapsed
        if not thread.is_alive():
            raise PeerFailed(
                "\n".join([f"{peer.name} exited during the measurement", *output[-5:]])
            )
        return PeerMeasurement(recent_rate(list(lines), elapsed), cores, output[-1])
    finally:
        _kill_session(process.pid)
        process.wait()


def _read_output(
    process: subprocess.Popen, peer: PeerProgram, lines: list[CountedLine], output: list[str]
) -> None:
    """Read the program's output until it exits."""
    assert process.stdout
    for text in process.stdout:
        output.append(text.rstrip())
        if line := parse_line(text, time.monotonic(), peer.patterns):
            lines.append(line)
        del output[:-50]


def _kill_session(leader: int) -> None:
    """Kill all processes of a session; a peer may have created several process groups."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if thread_cpu.parse_session_id(stat.read_text()) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
