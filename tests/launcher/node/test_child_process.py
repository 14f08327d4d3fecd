"""The end of everything that a supervised process has left behind."""

import subprocess
import sys

from processes import ROOT

PROGRAM = """
import os, subprocess, sys, time
from launcher.node import child_process, procfs
child_process.adopt_orphans()
# A chain of processes: each starts the next one, every 10 ms, and exits.
chain = "import os, time\\nend = time.monotonic() + 8\\nwhile time.monotonic() < end:\\n" \\
    " if os.fork(): os._exit(0)\\n time.sleep(0.01)"
for _ in range(5):
    subprocess.Popen([sys.executable, "-SEc", chain])
time.sleep(0.5)
child_process.kill_orphans()
print(procfs.descendants(os.getpid()))
"""


def test_processes_that_start_others_meanwhile_are_killed_too():
    for _ in range(3):
        command = [sys.executable, "-c", PROGRAM]
        assert subprocess.check_output(command, cwd=ROOT, text=True) == "[]\n"
