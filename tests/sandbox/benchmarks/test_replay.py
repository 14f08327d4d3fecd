"""Tests of sandbox/benchmarks/replay.py: what it prints."""

import re
import sys

from processes import ROOT, run


def test_it_prints_what_priorities_and_unrolls_take(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    script = ROOT / "sandbox" / "benchmarks" / "replay.py"
    code, printed = run(sys.executable, script, "--items=2000")
    assert code == 0, printed
    time = r"\d+\.\d+ ms"
    assert re.search(rf"2,000 priorities: 512 drawn in {time}, written back in {time}", printed)
    assert re.search(rf"packed into [\d,]+ in {time}, unpacked in {time}", printed)
