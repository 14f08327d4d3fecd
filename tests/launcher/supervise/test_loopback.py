"""The library that keeps mpirun off the network; `tests/test_open_ports.py` tests whole runs."""

import os
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from launcher.supervise import loopback, mpirun

MPIRUN = mpirun.local_command("/opt/mpi/bin/mpirun", 2, ["python", "experiment.py"])
_BINDS = """
import socket
for family, host in ((2, "0.0.0.0"), (10, "::"), (2, "127.0.0.2")):
    with socket.socket(family) as bound:
        bound.bind((host, 0))
        print(bound.getsockname()[0], end=" ")
"""


def _task(command=MPIRUN, **environment):
    environment = {"PATH": os.environ["PATH"]} | environment
    return SimpleNamespace(command=command, environment=environment)


@pytest.mark.parametrize(
    ("program", "bound"),
    [
        ("/opt/mpi/bin/prterun", "127.0.0.1 ::1 127.0.0.2 "),
        ("/usr/bin/mpirun", "127.0.0.1 ::1 127.0.0.2 "),  # of Open MPI 4
        ("python3", "0.0.0.0 :: 127.0.0.2 "),
    ],
)
def test_mpirun_and_no_other_program_listens_at_the_loopback_instead_of_everywhere(
    tmp_path, program, bound
):
    found, note = loopback.variables(_task(), tmp_path)
    assert note == ""
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or pytest.skip("no python3")
    command = [program, "-ISc", _BINDS]
    assert subprocess.check_output(command, executable=python, env=found, text=True) == bound


@pytest.mark.parametrize(
    "task", [_task(["python", "experiment.py"]), _task([*MPIRUN, "--host", "10.77.1.11"])]
)
def test_one_learner_and_learners_on_several_hosts_are_left_alone(tmp_path, task):
    assert loopback.variables(task, tmp_path) == ({}, "")
    assert list(tmp_path.iterdir()) == []


def test_what_the_user_has_set_stays(tmp_path):
    own = {"OMPI_MCA_btl": "self,tcp", "LD_PRELOAD": "libown.so"}
    found, _ = loopback.variables(_task(**own), tmp_path)
    assert "OMPI_MCA_btl" not in found
    assert found["OMPI_MCA_pml"] == "ob1"
    assert found["LD_PRELOAD"] == f"{tmp_path}/loopback.so:libown.so"


@pytest.mark.parametrize(
    ("name", "path", "why"),
    [
        ("a b", None, "a b/loopback.so contains a colon or a space"),
        ("a", "/nowhere", "there is no C compiler"),
        ("missing", None, "failed: "),
    ],
)
def test_without_the_library_the_ranks_still_do_not_listen_and_a_note_says_why(
    tmp_path, name, path, why
):
    folder = tmp_path / name
    if name != "missing":
        folder.mkdir()
    found, note = loopback.variables(_task(**({"PATH": path} if path else {})), folder)
    assert found["OMPI_MCA_btl"].startswith("^tcp")
    assert "LD_PRELOAD" not in found
    assert "listens on all network interfaces" in note
    assert why in note


def test_a_library_that_cannot_be_loaded_is_none(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(loopback.ctypes, "CDLL", refuse)
    found, note = loopback.variables(_task(), tmp_path)
    assert "LD_PRELOAD" not in found
    assert note.endswith("failed to map segment from shared object")
