"""The end of everything that a supervised process has left behind."""

import os
import signal
import subprocess
import sys

from processes import ROOT

from launcher.supervise import child_process

PROGRAM = """
import os, subprocess, sys, time
from launcher.supervise import child_process, procfs
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


def test_a_run_that_such_a_command_starts_is_none_of_its_commands():
    environment = os.environ | {"IMPALA_MM_EVENT": "end"}
    code = "import os; print('IMPALA_MM_EVENT' in os.environ)"
    started = child_process.start([sys.executable, "-c", code], environment, "/", signal.SIGKILL)
    assert started.communicate()[0] == b"False\n"


SPARING = """
import os, subprocess, time
from launcher.supervise import child_process, procfs
child_process.adopt_orphans()
event = os.environ | {"IMPALA_MM_EVENT": "end"}
# It ends as soon as one of the processes that it starts, one after the other, is killed.
saving = subprocess.Popen(
    "while /bin/true; do :; done", shell=True, env=event, start_new_session=True
)
left = subprocess.Popen(["sleep", "60"])
end = time.monotonic() + 1
while time.monotonic() < end:
    child_process.kill_orphans()
print(left.pid in procfs.descendants(os.getpid()), saving.poll())
child_process.kill_group(saving)
"""


def test_a_command_for_the_runs_end_is_not_killed():
    command = [sys.executable, "-c", SPARING]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "False None\n"


def test_processes_that_start_others_meanwhile_are_killed_too():
    command = [sys.executable, "-c", PROGRAM]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "[]\n"
