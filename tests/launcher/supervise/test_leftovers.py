"""The leftovers of killed processes are removed, and those of a living neighbour are not."""

import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import ROOT
from supervising import Supervised, until

from launcher.supervise import file_lock, leftovers, procfs, run_registry
from launcher.supervise.json_files import write_json
from launcher.supervise.leftovers import remove_leftovers, remove_shared_parameters

HOST, UID = socket.gethostname(), os.geteuid()
DEAD = 4_194_305  # a pid that no process has: the kernel's limit is below it


def _make(path, age=60.0, content=b"x"):
    """Make a file, or a folder if `content` is None, that was written `age` seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)
    return path


def _make_session(folder, pid, host=HOST):
    session = folder / f"ompi.{pid}"
    _make(session / f"pmix.{host}.tool")
    _make(session / "1" / "jobdata")
    os.utime(session, (0, 0))
    return session


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def test_segments_go_unless_a_process_has_one_of_their_job_mapped(tmp_path, shared):
    def segment(job, rank=0, host=HOST, uid=UID, age=60.0):
        return _make(shared / f"sm_segment.{host}.{uid}.{job:x}.{rank}", age)

    dead = [segment(0xABC0001, rank) for rank in (0, 1)]
    mapped, sibling = segment(0xABC0002), segment(0xABC0002, 1)
    kept = [mapped, sibling, segment(1, host="other"), segment(2, uid=UID + 1), segment(3, age=1)]
    kept += [_make(shared / "sm_segment.of-something-else"), _make(shared / "nccl-x")]
    outside = _make(tmp_path / "outside")
    (link := shared / f"sm_segment.{HOST}.{UID}.9.0").symlink_to(outside)
    singles = tmp_path / f"ompi.{HOST}.{UID}" / "jf.0"
    gone_session, kept_session = (_make(singles / str(n), content=None) for n in (7, 0xABC0002))
    with mapped.open("r+b") as file:
        content = mmap.mmap(file.fileno(), 0)
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not any(path.exists() for path in (*dead, gone_session))
    assert all(path.exists() for path in (*kept, link, outside, kept_session))
    content.close()
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not any(path.exists() for path in (mapped, sibling, kept_session))


def test_a_state_folder_goes_once_its_owner_and_supervisors_have_ended(tmp_path, shared):
    def make(owner, host=HOST):
        folder = tmp_path / f"impala_mm-{host}.{owner}-ab_12"
        _make(folder / "learners" / "lock")
        os.utime(folder, (0, 0))
        return folder

    dead, supervised = make(DEAD), make(DEAD + 1)
    kept = [supervised, make(os.getpid()), make(DEAD, host="another")]
    kept.append(_make(tmp_path / "impala_mm-ab_12", content=None))
    lock = file_lock.acquire(supervised / "learners" / "lock")  # as its supervisor does
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not dead.exists()
    assert all(path.exists() for path in kept)
    os.close(lock)
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not supervised.exists()


def test_an_mpiruns_session_goes_once_neither_its_pid_nor_a_file_is_in_use(tmp_path, shared):
    dead, open_still = _make_session(tmp_path, DEAD), _make_session(tmp_path, DEAD + 1)
    kept = [open_still, _make_session(tmp_path, os.getpid())]
    kept.append(_make_session(tmp_path, DEAD + 2, host="another"))
    kept.append(_make(tmp_path / f"ompi.{DEAD + 3}", content=None))
    kept.append(_make(tmp_path / f"ompi.{DEAD + 4}"))
    with (open_still / "1" / "jobdata").open():
        remove_leftovers(tmp_path, shared, tmp_path)
    assert not dead.exists()
    assert all(path.exists() for path in kept)


def test_files_of_autograph_go_if_no_process_with_tensorflow_is_as_old(
    tmp_path, shared, monkeypatch
):
    """Their names and contents do not tell who wrote them."""
    source = _make(tmp_path / "__autograph_generated_filea1.py", age=3600)
    compiled = _make(tmp_path / "__pycache__" / "__autograph_generated_filea1.pyc", age=3600)
    uses = leftovers._Uses(set(), set(), time.time() - 3610)
    monkeypatch.setattr(leftovers, "_find_uses", lambda: uses)
    remove_leftovers(tmp_path, shared, tmp_path)
    assert source.exists(), "a process that is alive may have written it"
    uses = uses._replace(tensorflow_since=time.time() - 3000)
    remove_leftovers(shared, shared, shared)
    assert source.exists(), "another folder was looked at"
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not source.exists()
    assert not compiled.exists()


@pytest.mark.parametrize("linked", [f"ompi.{HOST}.{UID}", f"ompi.{HOST}.{UID}/jf.0"])
def test_a_link_of_another_user_leads_to_no_removal(tmp_path, shared, linked):
    """Everyone can make such a link in /tmp, and root's supervisor must not follow it."""
    victim = tmp_path / "home" / ("jf.0" if "/" not in linked else "")
    precious = _make(victim / "thesis", content=None)
    link = tmp_path / "tmp" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "home")
    remove_leftovers(tmp_path / "tmp", shared, tmp_path / "tmp")
    assert precious.exists()


def test_nothing_is_removed_where_processes_cannot_be_seen(tmp_path, shared, monkeypatch):
    """A container may share its machine's memory and folders, but sees its own processes."""
    segment = _make(shared / f"sm_segment.{HOST}.{UID}.1.0")
    session = _make_session(tmp_path, DEAD)
    spaces = {"pid": 1, "ipc": leftovers._IPC_NAMESPACE}
    monkeypatch.setattr(leftovers, "_namespace", spaces.__getitem__)
    remove_leftovers(tmp_path, shared, tmp_path)
    assert segment.exists()
    spaces["ipc"] = 2  # now /dev/shm is the container's own
    remove_leftovers(tmp_path, shared, tmp_path)
    assert not segment.exists()
    assert session.exists()


_SHARES = """
import pathlib, sys, time
from impala_mm.actor.host_cache import HostParameterCache
cache = HostParameterCache(sys.argv[1], *map(pathlib.Path, sys.argv[2:]))
cache.store(1, b"parameters")
print("shares", cache._folder, flush=True)
time.sleep(60)
"""


@pytest.fixture
def share(shared):
    """Start actors of a run that share parameters; they end with the test."""
    actors = []

    def start(run, before=""):
        command = [sys.executable, "-c", before + _SHARES, run, shared]
        actors.append(subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT))
        assert actors[-1].stdout.readline().startswith(b"shares ")
        return actors[-1]

    yield start
    for actor in actors:
        actor.kill()
        actor.wait()
        actor.stdout.close()


def test_parameters_of_killed_actors_go_and_those_of_a_living_one_and_of_others_stay(shared, share):
    killed = [share("one"), share("one")]
    [left] = shared.iterdir()
    share("another")
    kept = {path for path in shared.iterdir() if path != left}
    kept |= {_make(shared / f"impala_mm-{UID + 1}-0123" / "members").parent}
    for number, actor in enumerate(killed):
        remove_shared_parameters(shared)
        assert (left / "vector").exists(), f"{2 - number} of them are alive"
        actor.kill()
        actor.wait()
    remove_shared_parameters(shared)
    assert {*shared.iterdir()} == kept


def test_a_run_that_is_killed_leaves_nothing_of_what_its_actors_shared(
    shared, share, tmp_path, monkeypatch
):
    """The lock of an actor with much memory is free only some time after it was sent SIGKILL."""
    monkeypatch.setattr(
        run_registry, "remove_shared_parameters", lambda: remove_shared_parameters(shared)
    )
    actor = share("one", before=f"memory = b'1' * {300 << 20}\n")
    run = run_registry.Run("impala", tmp_path)
    entry = {"name": "actor-0", "job": "actor", "host": "here", "place": "", "log": "/l"}
    rest = (0.0, run_registry.boot_id(), str(tmp_path), "", [entry], {}, [], 1)
    (run.folder / "actor-0").mkdir(parents=True)
    run.write_record(run_registry.Record("impala", "id", *rest))
    process = [actor.pid, procfs.start_time(actor.pid)]
    state = {"state": "running", "process": process, "supervisor": None}
    write_json(run.folder / "actor-0" / "state.json", entry | state)
    assert run.kill() == 1
    assert not [*shared.iterdir()]


def test_when_actors_were_killed_their_supervisor_removes_what_they_shared(tmp_path):
    """Also if it has not restarted its actor yet, as here for 0.5 s."""
    command = [sys.executable, "-c", _SHARES, str(tmp_path)]
    actor = Supervised(tmp_path, command, **{"name": "actor-0", "job": "actor", "restarts": 1,
                       "workdir": str(ROOT)})  # fmt: skip
    try:
        found = until(
            lambda: actor.log.exists() and re.search("shares (.+)\n", actor.log.read_text())
        )
        left = Path(found[1])
        assert left.exists()  # once its actor is gone, other tests' supervisors may remove it, too
        os.kill(actor.state["process"][0], signal.SIGKILL)
        actor.until("waits")
        (tmp_path / "stop").write_text("now")
        actor.wait()
        assert not left.exists()
    finally:
        actor.end()
