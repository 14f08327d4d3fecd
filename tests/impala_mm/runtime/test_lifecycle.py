"""The end of a process."""

import signal
import subprocess
import sys

import pytest
from processes import END_REASONS, EXIT_CODES, ROOT, Process


@pytest.mark.parametrize("closed", ["", ">&- 2>&-"])
def test_the_exit_code_is_kept_although_outputs_are_closed(closed):
    program = "from impala_mm.runtime import lifecycle; lifecycle.exit_now(3)"
    shell = ["bash", "-c", f'"$@" {closed}', "bash", sys.executable, "-c", program]
    assert subprocess.run(shell, cwd=ROOT, check=False).returncode == 3


@pytest.mark.parametrize("number", EXIT_CODES, ids=lambda number: number.name)
def test_each_signal_ends_a_process_with_its_exit_code_and_reason(number):
    """The first signal counts; a process saves before it ends."""
    program = (
        "import time; from impala_mm.runtime import lifecycle; ending = [];"
        "note = lambda number, _: (ending.append(number), print('noted', flush=True));"
        "lifecycle.handle_end_signals(note);"
        "print('ready', flush=True);"
        "[time.sleep(0.01) for _ in iter(lambda: len(ending) > 1, True)];"
        "print(lifecycle.end_reason(ending), flush=True);"
        "lifecycle.exit_now(lifecycle.exit_code(ending))"
    )
    process = Process(sys.executable, "-c", program)
    process.until("ready")
    process.process.send_signal(number)
    process.until("noted")
    process.process.send_signal(signal.SIGTERM if number != signal.SIGTERM else signal.SIGINT)
    assert process.wait(10) == EXIT_CODES[number]
    assert END_REASONS[number] in process.printed()


@pytest.mark.parametrize(
    ("limits", "wanted", "soft"),
    [("-Hn 3000; ulimit -Sn 300", 2000, 2000), ("-n 300", 2000, 300), ("-n 3000", 2000, 3000)],
)
def test_a_process_may_open_more_files_as_far_as_the_system_allows(limits, wanted, soft):
    program = (
        f"import resource; from impala_mm.runtime import lifecycle;"
        f"lifecycle.raise_file_limit({wanted});"
        f"print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    shell = ["bash", "-c", f'ulimit {limits}; exec "$@"', "bash", sys.executable, "-c", program]
    assert subprocess.check_output(shell, cwd=ROOT, text=True) == f"{soft}\n"


def test_a_signal_that_comes_again_ends_a_process_that_hangs():
    program = (
        "import time; from impala_mm.runtime import lifecycle; ending = [];"
        "lifecycle.remember_end_signals(ending, lambda: print('told', flush=True));"
        "print('ready', flush=True);"
        "[time.sleep(0.01) for _ in iter(int, 1)]"
    )
    process = Process(sys.executable, "-c", program)
    process.until("ready")
    for number in (signal.SIGINT, signal.SIGTERM):
        process.process.send_signal(number)
        process.until("told")
    process.process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
