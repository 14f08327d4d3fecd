"""Another program's steps per second, read from what it prints, for `throughput.py --peer`.

What it prints counts in one of two ways, said by the name of the pattern's group:

    (?P<steps>...)     a count since its start
    (?P<average>...)   its mean rate since its start, one line for each update: CleanRL's `SPS: N`

A mean since the start still holds the start. The steps so far are that mean times the time since
the start, which is not printed; but each update makes as many steps as any other, so that of line k
it is k x B = mean_k x (t_k - t_0), and of all lines together least squares give B and t_0.
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

_MIN_LINES_IN_WINDOW = 3  # that count
_MIN_LINES = 6  # that count, of means since the start


class LinePattern(NamedTuple):
    """The form of a program's lines that count steps."""

    expression: str  # with a group `steps` or `average`
    divisor: float  # so many of what it counts make a step: 4 where it counts Atari's frames


# Sample Factory counts frames, skipped ones included, unless --summaries_use_frameskip=False.
KNOWN_PATTERNS = (
    LinePattern(r"SPS: (?P<average>[\d.]+)", 1.0),
    LinePattern(r"F[Pp][Ss] is \(10 sec: .*Total num frames: (?P<steps>\d+)", 4.0),
)


class CountedLine(NamedTuple):
    """One line that counts."""

    time: float  # seconds, of a clock that goes on
    value: float
    is_average: bool  # a mean since the start; else a count


class PeerProgram(NamedTuple):
    """A program beside which ours is measured."""

    name: str
    command: str  # as a shell has it
    patterns: tuple[LinePattern, ...]


class PeerMeasurement(NamedTuple):
    """The speed and the CPU time of a peer in its last seconds."""

    steps: float  # per second
    cores: float  # CPU seconds per second, of all its processes
    last: str  # the line it was read from last


class PeerFailed(Exception):
    """It ended, or printed nothing that counts; says how."""


def parse_peers(
    given: Sequence[str], expressions: Sequence[str], divides: Sequence[str]
) -> list[PeerProgram]:
    """Makes peers of NAME=COMMAND, NAME=REGEX and NAME=NUMBER; ValueError says what is wrong."""
    commands = _parse_pairs(given, "--peer")
    patterns_by_name = _parse_pairs(expressions, "--peer_pattern")
    divisors_by_name = _parse_pairs(divides, "--peer_divide")
    for name in [*patterns_by_name, *divisors_by_name]:
        if name not in commands:
            raise ValueError(f"--peer_pattern and --peer_divide name {name}, and no --peer does")
    peers = []
    for name, command in commands.items():
        patterns = KNOWN_PATTERNS
        if name in patterns_by_name:
            if not {"steps", "average"} & re.compile(patterns_by_name[name]).groupindex.keys():
                raise ValueError(
                    f"--peer_pattern={name}=...: it needs a group (?P<steps>...), a count, or "
                    f"(?P<average>...), a rate since the start"
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
            raise ValueError(f"{flag}={name}: NAME=VALUE is due")
    return found


def parse_line(
    text: str, received_at: float, patterns: Sequence[LinePattern]
) -> CountedLine | None:
    """Parses a line of its output, in steps; None where it counts nothing."""
    for pattern in patterns:
        if found := re.search(pattern.expression, text):
            groups = found.groupdict()
            is_average = "average" in groups
            value = float(groups["average" if is_average else "steps"])
            return CountedLine(received_at, value / pattern.divisor, is_average)
    return None


def cumulative_steps(lines: Sequence[CountedLine]) -> np.ndarray:
    """Returns the steps so far, up to a constant, at each line."""
    if not lines[0].is_average:
        return np.array([line.value for line in lines])
    times = np.array([line.time for line in lines]) - lines[0].time
    rates = np.array([line.value for line in lines])
    number = np.arange(1, len(lines) + 1)
    # k B = rate_k (t_k - t_0), or B k + t_0 rate_k = rate_k t_k.
    update, _ = np.linalg.lstsq(np.stack([number, rates], 1), rates * times, rcond=None)[0]
    return number * update


def recent_rate(lines: Sequence[CountedLine], seconds: float) -> float:
    """Returns the steps per second over the last seconds; PeerFailed where lines are too few."""
    lines = [line for line in lines if line.is_average == lines[-1].is_average] if lines else []
    window = [line for line in lines if line.time >= lines[-1].time - seconds]
    if len(window) < _MIN_LINES_IN_WINDOW or (lines[-1].is_average and len(lines) < _MIN_LINES):
        raise PeerFailed(f"{len(lines)} lines that count are too few")
    steps = cumulative_steps(lines)
    first = len(lines) - len(window)
    return float((steps[-1] - steps[first]) / (lines[-1].time - lines[first].time))


def measure_peer(
    peer: PeerProgram, seconds: float, warm_up: float, timeout: float = 300.0
) -> PeerMeasurement:
    """Starts it, waits for its first line that counts, `warm_up` more seconds, and measures.

    A slow one is measured for longer: until it has printed enough.
    """
    process = subprocess.Popen(
        shlex.split(peer.command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=os.environ | {"PYTHONUNBUFFERED": "1"},  # lines come when they are printed
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
                raise PeerFailed("\n".join([f"{peer.name} ended: {peer.command}", *output[-5:]]))
            if time.monotonic() > deadline:
                raise PeerFailed(f"{peer.name} printed no line that counts in {timeout:.0f} s")
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
            raise PeerFailed("\n".join([f"{peer.name} ended while it was measured", *output[-5:]]))
        return PeerMeasurement(recent_rate(list(lines), elapsed), cores, output[-1])
    finally:
        _kill_session(process.pid)
        process.wait()


def _read_output(
    process: subprocess.Popen, peer: PeerProgram, lines: list[CountedLine], output: list[str]
) -> None:
    """Reads what it prints, until it ends."""
    assert process.stdout
    for text in process.stdout:
        output.append(text.rstrip())
        if line := parse_line(text, time.monotonic(), peer.patterns):
            lines.append(line)
        del output[:-50]


def _kill_session(leader: int) -> None:
    """Kills all processes of its session: it may have started some in groups of their own."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if thread_cpu.parse_session_id(stat.read_text()) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
