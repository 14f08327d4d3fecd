"""Tests of the copy of a run's folder in object storage, with stores in memory and on the disk."""

import pytest
from supervising import until

from impala_mm.records import checkpoint, mirror

fsspec = pytest.importorskip("fsspec")
memory = pytest.importorskip("fsspec.implementations.memory")


class Unreliable(memory.MemoryFileSystem):
    """A store that fails after a number of writes, as if its writer were killed."""

    protocol, store, pseudo_dirs = "unreliable", {}, [""]
    writes_left = float("inf")
    answers_lost = 0

    def _count(self):
        if Unreliable.writes_left <= 0:
            raise ConnectionError("no route to the store")
        Unreliable.writes_left -= 1

    def put_file(self, *args, **kwargs):
        self._count()
        super().put_file(*args, **kwargs)

    def pipe_file(self, *args, **kwargs):
        self._count()
        super().pipe_file(*args, **kwargs)
        if Unreliable.answers_lost > 0:
            Unreliable.answers_lost -= 1
            raise TimeoutError("no answer of the store")

    def rm(self, *args, **kwargs):
        self._count()
        super().rm(*args, **kwargs)


@pytest.fixture(autouse=True)
def _stores(monkeypatch):
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    monkeypatch.setattr(Unreliable, "writes_left", float("inf"))
    monkeypatch.setattr(Unreliable, "answers_lost", 0)
    monkeypatch.setattr(Unreliable, "store", {})
    monkeypatch.setattr(Unreliable, "pseudo_dirs", [""])
    monkeypatch.setattr(mirror, "_START_SECONDS", 0)


URL = "unreliable://bucket/run"


def _begin(folder, url=URL):
    folder.mkdir(exist_ok=True)
    said = []
    found = mirror.Mirror(url, folder, said.append)
    found.begin()
    return found, said


def _start(folder):
    """Record a start, as a run does once its flags are known to fit."""
    with (folder / "starts.jsonl").open("a") as file:
        file.write(f'{{"number": {file.tell()}, "folder": "{folder}"}}\n')
    (folder / "lock").touch()


def _save(folder, update, own=False):
    """Save a checkpoint, with a learner's own state before it, and rows."""
    for name, content in [("own/learner-0", "replay")] * own + [("checkpoints", "weights")]:
        work = folder / name / "saving"
        (work / "source").mkdir(parents=True)
        (work / "source" / "part").write_text(f"{content} {update}")
        (work / "variables").write_text(f"{content} {update} {folder}")
        checkpoint.finish(work, folder / name / f"{update:010d}", {"updates": update})
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"updates": {update}}}\n')


def _files(folder):
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != "lock"}


def _updates(folder):
    """Return the updates of all checkpoints, each of which must be intact."""
    found = checkpoint.all_in(folder / "checkpoints")
    for path in found:
        checkpoint.verify_files(path)
    return [int(path.name) for path in found]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_another_machine_gets_the_whole_folder_and_mirrors_what_it_adds(tmp_path, kind):
    url = URL if kind == "memory" else f"file://{tmp_path}/store/run"
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    copy, _ = _begin(first, url)
    _start(first)
    for update in (1, 2):
        _save(first, update, own=True)
    (first / "checkpoints" / "saving").mkdir()
    (first / "checkpoints" / "saving" / "variables").write_text("half")
    (first / "events").mkdir()
    (first / "events" / "events.1").write_text("events")
    for folder in (first, second):
        (folder / "slurm").mkdir(parents=True)
        (folder / "slurm" / "token").write_text(f"private key of the job in {folder}")
    copy.end()
    copy, said = _begin(second, url)
    expected = _files(first)
    del expected["checkpoints/saving/variables"]
    expected["slurm/token"] = f"private key of the job in {second}".encode()
    assert _files(second) == expected
    assert len(said) == 1
    assert "4 checkpoints and states" in said[0]
    # The second machine goes on and keeps two checkpoints; a description changes.
    _start(second)
    _save(second, 3, own=True)
    for folder in (second / "checkpoints", second / "own" / "learner-0"):
        for path in (folder / "0000000001").rglob("*.*"):
            path.unlink()
        checkpoint.all_in(folder)[0].rename(tmp_path / f"deleted-{folder.name}")
    checkpoint.change(second / "checkpoints" / "0000000003", {"episode_return": 7.0})
    copy.end()
    _begin(third, url)[0].end()
    expected = _files(second)
    del expected["slurm/token"]
    assert _files(third) == expected
    assert _updates(third) == [2, 3]


def test_wherever_an_upload_is_cut_off_no_machine_sees_a_part_of_a_checkpoint(tmp_path):
    """The first checkpoint is in the store; then the writer is killed after each of its writes."""
    counts, cut = [], 0
    while not counts or counts[-1] != [2, 3]:
        Unreliable.store, Unreliable.writes_left = {}, float("inf")
        here, there = tmp_path / f"here-{cut}", tmp_path / f"there-{cut}"
        copy, _ = _begin(here)
        _start(here)
        _save(here, 1, own=True)
        copy.end()
        Unreliable.writes_left = 0  # until all is there that is to be uploaded
        copy, _ = _begin(here)
        _start(here)
        for update in (2, 3):
            _save(here, update, own=True)
        checkpoint.all_in(here / "checkpoints")[0].rename(tmp_path / f"deleted-{cut}")
        Unreliable.writes_left = cut
        copy.end()
        Unreliable.writes_left = float("inf")
        _begin(there)[0].end()
        counts.append(_updates(there))
        for update in counts[-1]:  # its learner's own state came before it
            checkpoint.verify_files(there / "own" / "learner-0" / f"{update:010d}")
        cut += 1
    assert cut > 10
    assert counts[0] == [1]
    assert [1, 2] in counts
    assert [1, 2, 3] in counts
    assert counts == sorted(counts, key=lambda found: (max(found), -len(found) * (3 in found)))


def test_a_machine_that_returns_takes_over_the_newer_state_and_keeps_its_own_beside(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    copy, _ = _begin(first)
    _start(first)
    _save(first, 1)
    copy.end()
    _start(first)
    _save(first, 5, own=True)  # neither was uploaded
    copy, _ = _begin(second)
    _start(second)
    _save(second, 2)
    copy.end()
    _begin(first)[0].end()
    assert _updates(first) == [1, 2]
    former = list((first / "checkpoints").glob("former-0000000005-*"))
    assert len(former) == 1
    assert (first / "metrics.jsonl").read_bytes() == (second / "metrics.jsonl").read_bytes()


def test_checkpoints_that_somebody_has_deleted_here_are_downloaded_again(tmp_path):
    folder = tmp_path / "run"
    copy, _ = _begin(folder)
    _start(folder)
    for update in (1, 2):
        _save(folder, update, own=True)
    copy.end()
    (folder / "checkpoints").rename(tmp_path / "deleted")
    copy, _ = _begin(folder)
    assert _updates(folder) == [1, 2]
    copy.end()


def test_a_start_is_uploaded_at_once_even_if_the_answer_is_lost(tmp_path):
    folder = tmp_path / "run"
    copy, said = _begin(folder)
    Unreliable.answers_lost = 1
    _start(folder)
    until(lambda: said)
    assert "no answer of the store" in said[0]
    with fsspec.open(f"{URL}/starts.jsonl") as file:
        assert file.read() == (folder / "starts.jsonl").read_bytes()
    _save(folder, 1)
    copy.end()
    assert said[1:] == [f"{URL} is written again"]
    _begin(tmp_path / "other")[0].end()
    assert _updates(tmp_path / "other") == [1]


def test_the_store_fails_for_a_while_or_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "_PERIOD_SECONDS", 0.05)
    folder = tmp_path / "run"
    copy, said = _begin(folder)
    _start(folder)
    Unreliable.writes_left = 0
    until(lambda: "no route to the store" in said[-1] if said else False)
    assert "training continues" in said[-1]
    Unreliable.writes_left = float("inf")
    until(lambda: said[-1] == f"{URL} is written again")
    Unreliable.writes_left = 0
    _save(folder, 1)
    copy.end()
    assert said[-1].startswith(f"error: {URL} lacks what this run wrote last")
    assert str(folder) in said[-1]


def test_a_process_that_was_replaced_writes_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "_PERIOD_SECONDS", 0.05)
    first, second = tmp_path / "first", tmp_path / "second"
    old, said = _begin(first)
    _start(first)
    _save(first, 1)
    until(lambda: any(n.endswith("0000000001/about.json") for n in Unreliable.store))
    new, _ = _begin(second)
    _start(second)
    _save(second, 2)
    new.end()
    _save(first, 7)
    until(lambda: said)
    old.end()
    assert len(said) == 1
    assert f"another process has begun to write to {URL}" in said[0]
    _begin(tmp_path / "third")[0].end()
    assert _updates(tmp_path / "third") == [1, 2]


def test_a_folder_that_is_replaced_by_another_run_changes_nothing_in_the_store(tmp_path):
    folder = tmp_path / "run"
    copy, said = _begin(folder)
    _start(folder)
    _save(folder, 1)
    name, content = f"{URL}/metrics.jsonl", (folder / "metrics.jsonl").read_bytes()
    until(lambda: name in Unreliable.store and Unreliable.store[name].getvalue() == content)
    before = {name: file.getvalue() for name, file in Unreliable.store.items()}
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()
    (folder / "starts.jsonl").write_text('{"number": 0, "folder": "another run"}\n')
    _save(folder, 7)
    copy.end()
    assert {name: file.getvalue() for name, file in Unreliable.store.items()} == before
    assert "is another run's now" in said[-1]


def test_mirrors_that_are_refused(tmp_path, capsys):
    def refused(url, folder=None):
        with pytest.raises(SystemExit) as ended:
            _begin(folder or tmp_path / "run", url)[0].end()
        assert ended.value.code == 2
        return capsys.readouterr().err

    assert "nosuch" in refused("nosuch://bucket/run")
    assert "s3://bucket/run" in refused("file:///")
    assert "lies in the run's own folder" in refused(f"file://{tmp_path}/run/mirror")
    copy, _ = _begin(tmp_path / "run")
    _start(tmp_path / "run")
    copy.end()
    other = tmp_path / "other"
    other.mkdir()
    _start(other)
    assert "holds another run than" in refused(URL, other)
    Unreliable.writes_left = 0
    assert "no route to the store" in refused("unreliable://bucket/new")
