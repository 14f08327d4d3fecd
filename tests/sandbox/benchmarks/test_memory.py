"""Tests of sandbox/benchmarks/memory.py: the summary of samples, and one real measurement."""

import subprocess
import sys

import pytest
from processes import ROOT, run

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names
import memory

_HOLDING = """
import os
print("ready", flush=True)
input()
held = bytearray(os.urandom(64 << 20))
print("held", flush=True)
input()
"""


def test_a_process_takes_memory_and_one_that_is_gone_takes_none():
    """The process shares hardly anything with those of other tests, which come and go."""
    command = [sys.executable, "-c", _HOLDING]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        measured = []
        for said in ("ready", "held"):
            assert process.stdout.readline() == f"{said}\n"
            measured.append(memory.measure_memory(process.pid))
            print(file=process.stdin, flush=True)
    before, after = measured
    assert after.all - before.all == pytest.approx(64, abs=8)
    assert after.own - before.own == pytest.approx(64, abs=8)
    assert after.own < after.all
    assert memory.measure_memory(process.pid) == (0, 0)


def test_a_course_has_a_beginning_an_end_and_a_slope():
    seconds = [2.0 * i for i in range(100)]
    flat = memory.memory_trend(seconds, [400.0] * 100)
    assert (flat.start_mean, flat.end_mean, flat.per_hour) == (400, 400, 0)
    grows = memory.memory_trend(
        seconds, [50.0] * 10 + [100 + second / 36 for second in seconds[10:]]
    )
    assert grows.per_hour == pytest.approx(100)
    assert grows.start_mean == 50
    assert grows.end_mean == pytest.approx(100 + 189 / 36)


@pytest.mark.slow
def test_a_run_is_looked_at_in_both_places_of_inference():
    command = (sys.executable, ROOT / "sandbox" / "benchmarks" / "memory.py")
    flags = ("--minutes=0.05", "--actors=1", "--level_name=catch")
    code, printed = run(*command, *flags)
    assert code == 0, printed
    rows = [line.split() for line in printed.splitlines()[1:]]
    assert len(rows) == 8
    assert all(float(row[0]) > float(row[2]) > 50 for row in rows[1::2])
    assert min(float(row[2]) for row in rows[1::4]) > 150, "the learner itself"
