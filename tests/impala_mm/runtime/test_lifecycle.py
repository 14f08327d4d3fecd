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
