"""The host cache: one pull serves all actors of a run, no other user reads it, no file remains."""

import os
import stat
import subprocess
import sys
import threading

import pytest
from processes import ROOT

from impala_mm.actor.host_cache import HostParameterCache


@pytest.fixture
def share(tmp_path):
    """Return a function that makes an actor of this host; close those that remain."""
    there = []

    def join(run_id="run"):
        there.append(HostParameterCache(run_id, tmp_path))
        return there[-1]

    yield join
    for one in there:
        if one._folder.exists():
            one.close()


def test_what_one_actor_leaves_the_others_of_this_user_read_once_it_is_newer(share):
    one, other = share(), share()
    assert stat.S_IMODE(one._folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in one._folder.iterdir()} == {0o600}
    assert other.newest(after=-1) is None
    one.store(7, b"seven" * 1000)
    assert other.newest(after=6) == (7, b"seven" * 1000)
    assert other.newest(after=7) is None
    one.store(8, b"eight")
    assert other.newest(after=7) == (8, b"eight")


def test_one_has_the_turn_at_a_time_and_not_soon_again(share):
    one, other = share(), share()
    with one.pull_turn(at_least_secs=100) as ours:
        assert ours
        with other.pull_turn(at_least_secs=0) as theirs:
            assert not theirs, "somebody pulls already"
        one.store(1, b"x")
    with other.pull_turn(at_least_secs=100) as theirs:
        assert not theirs, "this host has just pulled"
    with other.pull_turn(at_least_secs=0) as theirs:
        assert theirs


def test_runs_do_not_mix_and_an_id_makes_no_path(share, tmp_path):
    one, other = share("a"), share("../../b")
    one.store(1, b"a")
    assert other.newest(after=-1) is None
    assert other._folder.parent == tmp_path


def test_a_folder_that_others_made_or_can_read_is_not_used(share, tmp_path):
    folder = share()._folder
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="can be read by others"):
        HostParameterCache("run", tmp_path)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(folder, 12345, 12345)
        with pytest.raises(PermissionError, match="belongs to another user"):
            HostParameterCache("run", tmp_path)
        os.chown(folder, 0, 0)


def test_the_last_one_takes_the_folder_away(share, tmp_path):
    one, other = share(), share()
    one.store(1, b"x")
    one.close()
    assert other.newest(after=-1) == (1, b"x")
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_what_killed_actors_left_is_taken_away_by_the_next_of_any_run(share, tmp_path):
    program = (
        "import os, signal, pathlib, sys\n"
        "from impala_mm.actor.host_cache import HostParameterCache\n"
        "s = HostParameterCache('killed', pathlib.Path(sys.argv[1])); s.store(1, b'x' * 1000);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], cwd=ROOT, check=False)
    (left,) = tmp_path.iterdir()
    assert (left / "vector").exists()
    one = share("another")
    assert list(tmp_path.iterdir()) == [one._folder]


def test_many_that_come_and_go_at_once_never_read_half(tmp_path):
    """20 threads join, pull, read and leave: every vector is complete, and no folder remains."""
    torn, failures = [], []

    def live(number):
        try:
            for _ in range(10):
                one = HostParameterCache("run", tmp_path)
                with one.pull_turn(0) as ours:
                    if ours:
                        one.store(number, bytes([number]) * 100_000)
                found = one.newest(after=-1)
                if found and found[1] != bytes([found[0]]) * 100_000:
                    torn.append(found[0])
                one.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not torn
    assert list(tmp_path.iterdir()) == []
