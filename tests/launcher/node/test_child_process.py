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


SPARING = """
import os, subprocess, sys, time
from launcher.node import child_process, procfs
child_process.adopt_orphans()
event = os.environ | {"IMPALA_MM_EVENT": "end"}
saving = subprocess.Popen("sleep 8; true", shell=True, env=event, start_new_session=True)
subprocess.Popen(["sleep", "8"])
time.sleep(0.3)
child_process.kill_orphans()
left = procfs.descendants(os.getpid())
print(left[0] == saving.pid, len(left))
child_process.kill_group(saving)
"""


def test_a_command_for_the_runs_end_is_not_killed():
    command = [sys.executable, "-c", SPARING]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "True 2\n"


def test_processes_that_start_others_meanwhile_are_killed_too():
    for _ in range(3):
        command = [sys.executable, "-c", PROGRAM]
        assert subprocess.check_output(command, cwd=ROOT, text=True) == "[]\n"
