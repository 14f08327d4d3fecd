"""Tests of copies of a run's folder, with source and copy on this machine: both are equal."""

import hashlib
import os
import select
import shutil
import socket
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from folders import Folder, save, whole
from hypothesis import example, given, settings
from hypothesis import strategies as st
from supervising import until

from launcher.hosts import checkpoints, fetch
from launcher.hosts.copy import (
    FolderCopy,
    OfferedFile,
    TransferState,
    choose_action,
    is_safe,
)
from launcher.hosts.remote_files import RemoteFiles
from launcher.hosts.remote_node import HostUnavailable, OperationFailed
from launcher.supervise import deployed_files
from launcher.supervise.file_service import LocalFiles, frame, receive_frame, serve

_NAMES = ("a.log", "b.log", "metrics.jsonl", "settings.json", "events/x", "d", "d/e")
_CHANGES = "append append rewrite replace rotate trim remove link save unsave".split()


class Cut(LocalFiles):
    """A source whose connection is lost after `after` bytes were read."""

    def __init__(self, after=1 << 60):
        self.left, self.read_of_it = after, 0

    def read(self, parts):
        for piece in super().read(parts):
            came = piece[: self.left]
            self.left -= len(came)
            self.read_of_it += len(came)
            if came or not piece:
                yield came
            if came != piece:
                raise HostUnavailable("the link was cut")


def once(source, there, here, end=None):
    """Copy a folder, and return the result."""
    copy = FolderCopy(
        source,
        "there",
        end or LocalFiles(),
        str(here),
        TransferState() if end else TransferState.read(here / ".brought.json"),
    )
    listed = fetch.list_offers(source, str(there))
    fetch.copy_all(copy, listed)
    if not end:
        checkpoints.prune_checkpoints(copy, checkpoints.split_offers(listed)[1])
    return copy.result


def same(there, here):
    """Assert that both folders are equal; return whether the copy has no incomplete checkpoint."""
    for name, about in LocalFiles().list_files(str(there)).items():
        if about[3]:
            assert os.readlink(here / name) == about[3]
        else:
            assert (here / name).read_bytes() == (there / name).read_bytes(), name
    hidden = {path.name for path in here.rglob(".*")}
    assert hidden <= {".brought.json"}
    return whole(here)


_STEPS = st.lists(
    st.tuples(st.sampled_from(_CHANGES), st.sampled_from(_NAMES), st.binary(max_size=6))
    | st.tuples(st.just("fetch"), st.integers(0, 60), st.none()),
    max_size=25,
)


# A log that became shorter and was then rotated: found once in many runs.
_SHORTER = [("append", "a.log", b"abc"), ("fetch", 3, None), ("rewrite", "a.log", b"")]
_SHORTER += [("fetch", 0, None), ("rotate", "a.log", b"")]


@example(_SHORTER)
@given(_STEPS)
@settings(deadline=None, max_examples=150)
def test_a_copy_equals_its_source_after_any_changes_and_cuts(steps):
    with tempfile.TemporaryDirectory() as folder:
        there, here = Folder(Path(folder) / "there"), Path(folder) / "here"
        here.mkdir()
        for what, name, data in steps:
            if what != "fetch":
                # Metrics are only appended to.
                if name != "metrics.jsonl" or what in ("append", "save", "unsave"):
                    getattr(there, what)(name, data)
                continue
            try:
                once(Cut(name), there.path, here)
                assert same(there.path, here)
            except HostUnavailable:
                assert whole(here)
        once(Cut(), there.path, here)
        assert same(there.path, here)
        again = Cut()
        once(again, there.path, here)
        assert again.read_of_it == 0, "nothing is transferred twice"


@pytest.fixture
def two(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    return Folder(tmp_path / "there"), here


def test_only_the_new_bytes_of_a_file_that_has_grown_are_transferred(two):
    there, here = two
    there.append("metrics.jsonl", os.urandom(5_000_000))
    once(Cut(), there.path, here)
    there.append("metrics.jsonl", b"more")
    source = Cut()
    once(source, there.path, here)
    assert source.read_of_it == 4
    assert same(there.path, here)


@pytest.mark.parametrize("how", ["rotate", "trim"])
def test_a_rotated_log_is_not_transferred_again(two, how):
    there, here = two
    there.append("a.log", b"old" * 1000)
    once(Cut(), there.path, here)
    there.append("a.log", b"last")
    getattr(there, how)("a.log", b"new")
    source = Cut()
    once(source, there.path, here)
    assert source.read_of_it == len(b"lastnew")
    assert same(there.path, here)


def test_a_file_that_was_changed_in_the_copy_is_moved_aside(two):
    there, here = two
    there.append("evaluations.jsonl", b"1\n")
    once(Cut(), there.path, here)
    with (here / "evaluations.jsonl").open("ab") as file:
        file.write(b"mine\n")
    once(Cut(), there.path, here)
    assert (here / "evaluations.jsonl").read_bytes() == b"1\nmine\n"
    there.append("evaluations.jsonl", b"2\n")
    once(Cut(), there.path, here)
    assert (here / "evaluations.jsonl").read_bytes() == b"1\n2\n"
    assert (here / "evaluations.jsonl.here").read_bytes() == b"1\nmine\n"


def test_old_checkpoints_are_removed_but_never_the_best_or_the_users_own(two):
    there, here = two
    for number in range(1, 6):
        there.save("." * number, b"%d" % number, {2: 9.0}.get(number, 1.0), milestone=number == 3)
        once(Cut(), there.path, here)
    save(here / "checkpoints" / f"{0:010d}", b"own")
    for number in range(1, 5):
        there.unsave("." * number, b"")
    assert _numbers(here) == [0, 1, 2, 3, 4, 5]
    once(Cut(), there.path, here)
    assert _numbers(here) == [0, 2, 3, 5]
    shutil.rmtree(there.path / "checkpoints")
    once(Cut(), there.path, here)
    assert _numbers(here) == [0, 2, 3, 5], "a source without checkpoints removes none"


def _numbers(here):
    """Return the numbers of a copy's checkpoints; it must hold nothing else beside them."""
    return sorted(int(path.name) for path in (here / "checkpoints").iterdir())


def test_a_damaged_checkpoint_is_not_copied_and_reported_once(two):
    there, here = two
    there.save(".", b"good")
    there.save("..", b"good")
    (there.path / "checkpoints" / f"{2:010d}" / "variables.data").write_bytes(b"evil")
    done = once(Cut(), there.path, here)
    assert [path.name for path in (here / "checkpoints").iterdir()] == [f"{1:010d}"]
    (error,) = done.errors
    assert error.startswith(f"checkpoint {2:010d} is damaged and was not copied: ")
    source = Cut()
    assert once(source, there.path, here).errors == []
    assert source.read_of_it == 0
    there.save("..", b"good again")  # another checkpoint of the same number
    once(Cut(), there.path, here)
    assert same(there.path, here)
    there.save("..", b"and again")
    once(Cut(), there.path, here)
    assert same(there.path, here)
    assert len(list((here / "checkpoints").iterdir())) == 2


def test_links_out_of_the_folder_are_copied_as_their_targets_and_cycles_end(two, tmp_path):
    there, here = two
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    (there.path / "checkpoints").symlink_to(elsewhere)
    there.save(".", b"content")
    (there.path / "latest").symlink_to(f"checkpoints/{1:010d}")
    (elsewhere / "circle").symlink_to(elsewhere)
    (there.path / "nothing").symlink_to("/no/such/file")
    for name in (
        *("lock", "checkpoints/saving/x", "checkpoints/damaged-7/x", ".game.mp4.writing"),
        "own/learner-0/0000000007/source/replay.npy",
    ):
        (there.path / name).parent.mkdir(parents=True, exist_ok=True)
        (there.path / name).write_text("not for others")
    (there.path / "file").write_text("content")
    once(Cut(), there.path, here)
    assert same(there.path, here)
    names = {str(path.relative_to(here)) for path in here.rglob("*") if not path.is_dir()}
    assert {name for name in names if not name.startswith("checkpoints/0")} == {
        *(".brought.json", "file"),
    }
    assert (here / "latest" / "variables.data").read_bytes() == b"content"


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ".bashrc", "a//b", "."])
def test_no_name_or_link_of_the_source_leads_out_of_the_folder(name):
    assert not is_safe(name, _link(""))
    assert is_safe("a/x", _link("../b"))
    for to in ("../../b", "/b", "../..", "..", "../.ssh", "b/../../c", "b/."):
        assert not is_safe("a/x", _link(to)), to


def _link(to):
    return OfferedFile("/x", [1, 1, 1, to])


class Hostile(LocalFiles):
    """A host that was taken over: it lists what it likes, also checkpoints without files."""

    content = b'{"files": {}, "episode_return": null}'

    def __init__(self, *names, **links):
        self.listing = {name: [len(self.content), 1, 1, ""] for name in names}
        self.listing |= {name: [0, 0, 0, to] for name, to in links.items()}

    def list_files(self, folder):
        return self.listing

    def digests(self, parts):
        return [hashlib.sha256(self.content).hexdigest() for _ in parts]

    def read(self, parts):
        for _ in parts:
            yield self.content
            yield b""


@pytest.fixture
def home(tmp_path):
    """A home folder with a run's folder `run/here` and the keys that may log in."""
    for folder in ("run/here/b", ".ssh"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / ".ssh" / "authorized_keys").write_text("the user's own")
    return tmp_path


def _outside(home):
    """Return what is in a home folder beside the run's."""
    paths = [path for path in home.rglob("*") if home / "run" / "here" not in path.parents]
    return {str(path.relative_to(home)): path.is_file() and path.read_text() for path in paths}


_CHECKPOINT = ("checkpoints/1/about.json", "checkpoints/1/x")


@pytest.mark.parametrize(
    ("links", "names"),
    [
        ({"a/b/c": "../..", "a/b/c/w": "../../.ssh"}, ["a/b/c/w/authorized_keys"]),
        ({"a/b/c": "../../b", "a/b/c/w": "../../w"}, ["a/b/c/w/x"]),
        ({"w": ".."}, ["w/authorized_keys"]),
        ({"checkpoints": ".."}, _CHECKPOINT),
        ({"checkpoints": "b"}, _CHECKPOINT),
    ],
)
def test_a_host_writes_nothing_out_of_the_folder_through_links_that_it_offers(home, links, names):
    before, here = _outside(home), home / "run" / "here"
    source = Hostile("learners.log", *names, **links)
    done = once(source, home / "there", here)
    assert _outside(home) == before
    assert "not copied, since no run has such names and links" in done.errors[0]
    assert not any((here / name).exists() for name in names)
    once(Hostile(*names), home / "there", here)  # the files below what the links have left
    assert _outside(home) == before
    assert (here / "learners.log").read_bytes() == Hostile.content, "the rest is copied"


@pytest.mark.parametrize("name", ["w/authorized_keys", "w/x/y", "checkpoints/1/about.json"])
def test_nothing_is_written_through_a_link_that_leads_out_of_the_copy(home, name):
    here = home / "run" / "here"
    (here / name.partition("/")[0]).symlink_to("../../.ssh")
    before = _outside(home)
    done = once(Hostile(name, "learners.log"), home / "there", here)
    assert _outside(home) == before
    (error,) = done.errors
    assert error.startswith(f"{name} not copied, since a link in {here} leads out of it")
    done = once(Hostile(**{"w/l": "../b"}), home / "there", here)
    assert bool(done.errors) == name.startswith("w")
    assert _outside(home) == before
    assert (here / "learners.log").read_bytes() == Hostile.content, "the rest is copied"


def test_a_copy_that_is_mirrored_as_well_is_never_shortened():
    sizes = [5, 0, 1, ""], [7, 0, 1, ""]
    for name in ("learners.log", "metrics.jsonl", "hosts.jsonl"):
        assert choose_action(name, *sizes, is_unchanged=True, matches=True) == "keep"
    assert choose_action("actor-0.log", *sizes, is_unchanged=True, matches=False) == "aside"


class Channel:
    """A channel to a thread that runs the file service, or another answer to its calls."""

    def __init__(self, serve=serve):
        self._ours, theirs = socket.socketpair()
        self.settimeout, self.makefile = self._ours.settimeout, self._ours.makefile
        self.sendall = self._ours.sendall
        file = theirs.makefile("rwb")
        threading.Thread(target=serve, args=(file, file), daemon=True).start()

    def recv_ready(self):
        return bool(select.select([self._ours], [], [], 0)[0])

    def close(self):
        self._ours.shutdown(socket.SHUT_RDWR)


def remote_files(serve=serve):
    """Return the files of a host, of which each program is a `Channel`."""
    return RemoteFiles(
        SimpleNamespace(
            host_id="host",
            error="",
            call=lambda op: ["serve the files"],
            open_program=lambda command: Channel(serve),
        )
    )


def test_copies_through_a_channel_are_equal_in_both_directions(two, tmp_path):
    there, here = two
    there.append("settings.json", b"{}")
    there.append("events/x", os.urandom(3_000_000))
    there.append("empty", b"")
    there.append("odd \udcff\n", b"odd")
    there.save("..", os.urandom(700_000), 3.0)
    (there.path / "latest").symlink_to("settings.json")
    once(remote_files(), there.path, here)
    assert same(there.path, here)
    away = tmp_path / "away"
    once(LocalFiles(), here, away, end=remote_files())
    assert same(here, away)
    source = Cut()
    once(source, here, away, end=remote_files())
    assert source.read_of_it == 0


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\xff\xff\xff\xff", "host: it sent a message of 4,294,967,295 bytes; at most"),
        (b"\0\0\0\4four\0\0\0\4more", "host: it sent more of /x than was requested"),
    ],
)
def test_a_host_cannot_fill_the_memory_or_the_disk_of_this_machine(sent, error):
    def answer(source, out):
        receive_frame(source)
        out.write(sent)
        out.flush()

    with pytest.raises(HostUnavailable, match=error):
        list(remote_files(answer).read([["/x", 1, 0, 5]]))


@pytest.mark.parametrize("sent", [b"5", b"{}", b"[" * 200_000])
def test_an_answer_of_another_form_ends_that_hosts_transfer_alone(sent):
    def answer(source, out):
        receive_frame(source)
        out.write(frame(sent))
        out.flush()

    with pytest.raises(HostUnavailable, match="host: its answer has another form"):
        remote_files(answer).compare_deployed("/x", {}, [])


def test_a_write_that_fails_is_reported_at_once():
    def chunks():
        for _ in range(5000):  # 1.3 GB
            nonlocal sent
            sent += 1
            yield bytes(1 << 18)
        yield b""

    sent = 0
    host = remote_files()
    with pytest.raises(OperationFailed, match="/dev/full: No space left on device"):
        host.write([["/dev/full", 0]], chunks())
    assert sent < 100
    assert host.file_infos(["/dev/none"]) == [None], "the next call has a channel of its own"


def test_deployed_files_are_installed_together_and_a_transfer_that_was_cut_goes_on(tmp_path):
    folder = str(tmp_path / "there")
    content = {"a.whl": os.urandom(1_000_000), "bin/program": b"#!/bin/sh"}
    for name, data in content.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / "bin/program").chmod(0o755)
    (tmp_path / "link").symlink_to("bin/program")
    wanted = {name: deployed_files.digest(tmp_path / name) for name in (*content, "link")}
    targets = {name: deployed_files.arrival_path(folder, name, wanted[name]) for name in content}
    modes = {"a.whl": 0o600, "bin/program": 0o755, "link": 0o777}
    host = remote_files()
    assert host.compare_deployed(folder, wanted, [])["missing"] == dict.fromkeys(wanted, 0)

    def cut():
        yield content["a.whl"][:300_000]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host.write([[targets["a.whl"], 0]], cut())
    arrived = {"a.whl": 300_000, "bin/program": 0, "link": 0}
    until(lambda: host.compare_deployed(folder, wanted, [])["missing"] == arrived, 5)
    parts = [[targets["a.whl"], 300_000], [targets["bin/program"], 0]]
    sent = [b"wrong", b"", content["bin/program"], b""]
    host.write(parts, iter(sent))
    with pytest.raises(OperationFailed, match=r"a\.whl is incomplete, or changed while it"):
        host.install_deployed(folder, wanted, modes)
    assert sorted(os.listdir(folder)) == [".deployed.json", ".deploying"]
    arrived = {"a.whl": 0, "bin/program": 9, "link": 0}
    assert host.compare_deployed(folder, wanted, [])["missing"] == arrived
    host.write([[targets["a.whl"], 0]], iter([content["a.whl"], b""]))
    host.install_deployed(folder, wanted, modes)
    assert sorted(os.listdir(folder)) == [".deployed.json", "a.whl", "bin", "link"]
    for name, data in content.items():
        path = tmp_path / "there" / name
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == modes[name]
    assert os.readlink(tmp_path / "there" / "link") == "bin/program"
    found = host.compare_deployed(folder, wanted, [])
    assert found["settled"]
    assert found["missing"] == {}
