"""Files of a run's state: gone, replaced, or not to be read for the moment."""

import errno
import os
from pathlib import Path

import pytest

from launcher.supervise.json_files import is_gone, write_json
from launcher.supervise.liveness import HeartbeatMonitor
from launcher.supervise.supervisor import StopRequests
from launcher.supervise.task import Task


@pytest.fixture
def failing(monkeypatch):
    """Let the file system refuse everything, as when a ticket of Kerberos has expired."""

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def fail():
        for name in ("stat", "read_text", "read_bytes", "glob"):
            monkeypatch.setattr(Path, name, refuse)

    return fail


def test_what_cannot_be_asked_for_is_not_gone(tmp_path, failing):
    assert is_gone(tmp_path / "none")
    (tmp_path / "file").touch()
    assert is_gone(tmp_path / "file" / "none")
    assert not is_gone(tmp_path)
    failing()
    assert not is_gone(tmp_path / "none")


def test_a_process_goes_on_while_nobody_can_read_whether_its_learners_do(tmp_path, failing):
    task = Task(**dict.fromkeys(Task._fields) | {"name": "a", "folder": tmp_path})
    requests = StopRequests(task, HeartbeatMonitor(tmp_path / "beat"))
    requests._created -= 100
    (tmp_path / "a").mkdir()
    assert requests.newest() == "save", "it was never started"
    failing()
    assert requests.newest() == ""


def test_a_process_without_a_lease_outlives_learners_of_another_host(tmp_path):
    task = Task(**dict.fromkeys(Task._fields) | {"name": "a", "folder": tmp_path})
    for folder in ("a", "learners"):
        (tmp_path / folder).mkdir()
    for lease, request in ((0.0, ""), (None, "save")):
        requests = StopRequests(task._replace(lease_secs=lease), HeartbeatMonitor(tmp_path / "x"))
        requests._created -= 100
        assert requests.newest() == request, "its learners' state is not on this machine"
        # A copy of the state of the other machine, whose supervisor is no process of this one.
        copied = {"name": "learners", "job": "learner", "host": "far", "state": "running"}
        copied |= {"log": "", "supervisor": [4194303, 7], "process": None, "restarts": 0}
        write_json(tmp_path / "learners" / "state.json", copied)
        assert requests.newest() == request
        (tmp_path / "learners" / "state.json").unlink()
