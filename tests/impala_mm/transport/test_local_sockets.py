"""The sockets of this user: found by addresses, closed to others, removed once unused."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from deadlines import within
from fronted import Learner
from processes import free_port

from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport import route

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def shared():
    with Learner() as made:
        yield made


def test_a_learner_at_all_addresses_is_found_by_each_of_this_machine():
    held = HeldAddress(f"0.0.0.0:{free_port()}")
    path = route.path_of_learner(held.sockets)
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(path))
        own.listen()
        for host in ("127.0.0.1", "127.3.2.1", "localhost"):
            assert route.find_learner(f"{host}:{held.port}") == path
        for address in (f"192.0.2.1:{held.port}", f"127.0.0.1:{free_port()}", "no.invalid:1"):
            assert route.find_learner(address) is None
    held.release()


@needs_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv is not installed")
def test_another_user_of_this_machine_reaches_neither_end(shared):
    client = shared.join()  # with a relay of its own
    folder = Path(f"/tmp/impala_mm-{os.geteuid()}")
    sockets = [str(path) for path in folder.iterdir() if route.is_bound(path)]
    assert len(sockets) >= 2
    program = (
        "import socket, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try: socket.socket(socket.AF_UNIX).connect(path)\n"
        "    except PermissionError: print('denied')\n"
    )
    python = [getattr(sys, "_base_executable", sys.executable), "-I", "-c", program, *sockets]
    nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"]
    for other, printed in ((nobody, "denied\n"), ([], "")):
        ran = subprocess.check_output(["setpriv", *other, *python], text=True, cwd="/")
        assert ran == printed * len(sockets)
    assert client.hello({"probe": True})["nonce"]


def test_a_folder_of_another_user_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(route, "_FOLDER", tmp_path / "squatted")
    (tmp_path / "squatted").mkdir()
    (tmp_path / "squatted").chmod(0o777)
    other = tempfile.TemporaryDirectory(dir="/tmp")  # a path of at most 107 letters
    monkeypatch.setattr(tempfile, "tempdir", other.name)
    with Learner() as learner:
        assert route.find_learner(learner.address) is None
        assert learner.join(from_outside=False).hello({"probe": True})["nonce"], "by TLS"
    assert not list((tmp_path / "squatted").iterdir())
    assert {path.stat().st_mode & 0o777 for path in Path(other.name).iterdir()} == {0o700}
    other.cleanup()


def test_sockets_that_killed_processes_left_are_removed_and_cost_no_time(monkeypatch, tmp_path):
    monkeypatch.setattr(route, "_FOLDER", tmp_path / "own")
    held = HeldAddress(address := f"127.0.0.1:{free_port()}")
    path = route.path_of_learner(held.sockets)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    with within(1):
        assert route.find_learner(address) is None
    os.utime(path, (0, 0))
    assert route.path_of_actor() != path
    assert not path.exists()
    held.release()


def test_a_living_socket_is_neither_removed_nor_connected_to(monkeypatch, tmp_path):
    """Its process may be stopped, with as many connections waiting as it takes."""
    monkeypatch.setattr(route, "_FOLDER", tmp_path / "own")
    path = route.path_of_actor()
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as waiting:
        busy.bind(str(path))
        busy.listen(1)
        os.utime(path, (0, 0))
        route.remove_unused()
        busy.settimeout(0.2)
        with pytest.raises(TimeoutError):
            busy.accept()
        for _ in range(2):
            waiting.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        route.remove_unused()
        assert path.exists()


def test_a_link_to_a_socket_that_is_gone_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(route, "_FOLDER", tmp_path / "own")
    link = route.path_of_actor()
    link.symlink_to(tmp_path / "gone")
    os.utime(link, (0, 0), follow_symlinks=False)
    route.remove_unused()
    assert not link.is_symlink()
