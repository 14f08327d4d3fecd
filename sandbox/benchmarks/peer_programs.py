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

_LEAST_WITHIN, _LEAST = 3, 6  # lines that count, in the window and of means since the start


class Pattern(NamedTuple):
    """How a program's lines are read."""

    expression: str  # with a group `steps` or `average`
    divide: float  # so many of what it counts make a step: 4 where it counts Atari's frames


# Sample Factory counts frames, skipped ones included, unless --summaries_use_frameskip=False.
KNOWN = (
    Pattern(r"SPS: (?P<average>[\d.]+)", 1.0),
    Pattern(r"F[Pp][Ss] is \(10 sec: .*Total num frames: (?P<steps>\d+)", 4.0),
)


class Line(NamedTuple):
    """One line that counts."""

    at: float  # seconds, of a clock that goes on
    value: float
    average: bool  # a mean since the start; else a count


class Peer(NamedTuple):
    """A program beside which ours is measured."""

    name: str
    command: str  # as a shell has it
    patterns: tuple[Pattern, ...]


class Ran(NamedTuple):
    """What it did in its last seconds."""

    steps: float  # per second
    cores: float  # CPU seconds per second, of all its processes
    last: str  # the line it was read from last


class Failed(Exception):
    """It ended, or printed nothing that counts; says how."""


def named(given: Sequence[str], expressions: Sequence[str], divides: Sequence[str]) -> list[Peer]:
    """From NAME=COMMAND, NAME=REGEX and NAME=NUMBER; ValueError says what is wrong."""
    commands = _pairs(given, "--peer")
    asked, factors = _pairs(expressions, "--peer_pattern"), _pairs(divides, "--peer_divide")
    for name in [*asked, *factors]:
        if name not in commands:
            raise ValueError(f"--peer_pattern and --peer_divide name {name}, and no --peer does")
    peers = []
    for name, command in commands.items():
        patterns = KNOWN
        if name in asked:
            if not {"steps", "average"} & re.compile(asked[name]).groupindex.keys():
                raise ValueError(
                    f"--peer_pattern={name}=...: it needs a group (?P<steps>...), a count, or "
                    f"(?P<average>...), a rate since the start"
                )
            patterns = (Pattern(asked[name], 1.0),)
        if name in factors:
            patterns = tuple(p._replace(divide=float(factors[name])) for p in patterns)
        peers.append(Peer(name, command, patterns))
    return peers


def _pairs(given: Sequence[str], flag: str) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in given)
    for name, value in found.items():
        if not name or not value:
            raise ValueError(f"{flag}={name}: NAME=VALUE is due")
    return found


def read(text: str, at: float, patterns: Sequence[Pattern]) -> Line | None:
    """A line of its output, in steps; None where it counts nothing."""
    for pattern in patterns:
        if found := re.search(pattern.expression, text):
            groups = found.groupdict()
            average = "average" in groups
            value = float(groups["average" if average else "steps"])
            return Line(at, value / pattern.divide, average)
    return None


def counts(lines: Sequence[Line]) -> np.ndarray:
    """Steps so far, up to a constant, at each line."""
    if not lines[0].average:
        return np.array([line.value for line in lines])
    at = np.array([line.at for line in lines]) - lines[0].at
    rate = np.array([line.value for line in lines])
    number = np.arange(1, len(lines) + 1)
    # k B = rate_k (t_k - t_0), or B k + t_0 rate_k = rate_k t_k.
    update, _ = np.linalg.lstsq(np.stack([number, rate], 1), rate * at, rcond=None)[0]
    return number * update


def rate(lines: Sequence[Line], seconds: float) -> float:
    """Steps per second over the last of them; Failed where they are too few."""
    lines = [line for line in lines if line.average == lines[-1].average] if lines else []
    within = [line for line in lines if line.at >= lines[-1].at - seconds]
    if len(within) < _LEAST_WITHIN or (lines[-1].average and len(lines) < _LEAST):
        raise Failed(f"{len(lines)} lines that count are too few")
    so_far = counts(lines)
    first = len(lines) - len(within)
    return float((so_far[-1] - so_far[first]) / (lines[-1].at - lines[first].at))


def run(peer: Peer, seconds: float, warm: float, patience: float = 300.0) -> Ran:
    """Starts it, waits for its first line that counts, `warm` more seconds, and measures.

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
    lines: list[Line] = []
    said: list[str] = []
    thread = threading.Thread(target=_hear, args=(process, peer, lines, said), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + patience
        while not lines:
            if not thread.is_alive():
                raise Failed("\n".join([f"{peer.name} ended: {peer.command}", *said[-5:]]))
            if time.monotonic() > deadline:
                raise Failed(f"{peer.name} printed no line that counts in {patience:.0f} s")
            time.sleep(0.1)
        time.sleep(warm)
        begin, cpu = time.monotonic(), thread_cpu.session(process.pid)
        while thread.is_alive() and time.monotonic() < begin + patience:
            new = sum(line.at > begin for line in list(lines))
            enough = new >= _LEAST_WITHIN and len(lines) >= _LEAST
            if enough and time.monotonic() - begin >= seconds:
                break
            time.sleep(0.1)
        took = time.monotonic() - begin
        cores = (thread_cpu.session(process.pid) - cpu) / took
        if not thread.is_alive():
            raise Failed("\n".join([f"{peer.name} ended while it was measured", *said[-5:]]))
        return Ran(rate(list(lines), took), cores, said[-1])
    finally:
        _end(process.pid)
        process.wait()


def _hear(process: subprocess.Popen, peer: Peer, lines: list[Line], said: list[str]) -> None:
    """Takes up what it prints."""
    assert process.stdout
    for text in process.stdout:
        said.append(text.rstrip())
        if line := read(text, time.monotonic(), peer.patterns):
            lines.append(line)
        del said[:-50]


def _end(leader: int) -> None:
    """All processes of its session: it may have started some in groups of their own."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if thread_cpu.session_of(stat.read_text()) == leader:
                os.kill(int(stat.parent.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
