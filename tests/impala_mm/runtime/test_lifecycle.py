"""The end of a process."""

import subprocess
import sys

import pytest
from processes import ROOT


@pytest.mark.parametrize("closed", ["", ">&-", ">&- 2>&-"])
def test_the_exit_code_is_kept_although_outputs_are_closed(closed):
    program = "from impala_mm.runtime import lifecycle; lifecycle.exit_now(3)"
    shell = ["bash", "-c", f'"$@" {closed}', "bash"]
    assert (
        subprocess.run([*shell, sys.executable, "-c", program], cwd=ROOT, check=False).returncode
        == 3
    )


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
