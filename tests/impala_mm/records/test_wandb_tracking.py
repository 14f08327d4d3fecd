"""--track: wandb gets rows and settings, and nothing that it does harms a run."""

import importlib.util
import json
import os
import sys
import threading
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

from impala_mm.records import tracking
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.tracking import WandbTracker

HERE = importlib.util.find_spec("wandb") is not None


class StandIn(types.ModuleType):
    """A stand-in for wandb that records the calls it receives."""

    offline, disabled, url = True, False, None

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None, origin="here")
        self.inits, self.rows, self.finished = [], [], []
        self.metrics, self.artifacts, self.torn_down = [], [], 0

    def init(self, **given):
        self.inits.append(given)
        return self

    def define_metric(self, name, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, row):
        self.rows.append(row)

    class Artifact:
        def __init__(self, name, type):
            self.told = [name, type]

        def add_file(self, path):
            self.told.append(path)

    def log_artifact(self, artifact):
        self.artifacts.append(artifact.told)

    def finish(self):
        self.finished.append(len(self.rows))

    def teardown(self):
        self.torn_down += 1


def _tracked(folder, rows=1, settings=None, say=print, tags=()):
    """Track a run of some rows to its end."""
    run = tracking.TrackedRun(folder, settings or {}, [*tags])
    tracked = tracking.Tracking("wandb", WandbTracker(), run, say)
    for update in range(rows):
        tracked.write(_row(update))
    tracked.end()


@pytest.fixture
def wandb(monkeypatch):
    monkeypatch.setenv("WANDB_DATA_DIR", "unused")  # else `begin` sets it for all tests
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    return stand_in


def _row(update):
    return {"frames": 100.0 * update, "updates": update, "episode_return": update / 2}


def test_wandb_gets_every_row_in_order_and_the_settings(tmp_path, wandb):
    said = []
    settings = {"level_name": "catch", "max_seconds": float("inf")}
    _tracked(tmp_path, 50, settings, said.append)
    assert wandb.rows == [_row(update) for update in range(50)]
    assert wandb.finished == [50]
    assert wandb.torn_down == 1, "its process would outlive the run"
    assert wandb.metrics == [("*", "frames")]
    given = wandb.inits[0]
    assert given["config"] == {"level_name": "catch", "max_seconds": "inf"}
    assert given["dir"] == str(tmp_path)
    assert given["name"] == tmp_path.name
    assert [line.startswith(f"tracked in {tmp_path / 'wandb'}") for line in said] == [True]


def test_wandb_gets_tags_and_the_files_of_the_folder_as_artifacts(tmp_path, wandb):
    (tmp_path / "videos").mkdir()
    for name in ("settings.json", "report.html", "videos/Pong-100.mp4", "learner.log"):
        (tmp_path / name).touch()
    _tracked(tmp_path, tags=["a", "b"])
    assert wandb.inits[0]["tags"] == ["a", "b"]
    run = (tmp_path / "wandb-id").read_text().strip()
    assert wandb.artifacts == [
        [f"settings-{run}-settings", "settings", str(tmp_path / "settings.json")],
        [f"report-{run}-report", "report", str(tmp_path / "report.html")],
        [f"video-{run}-Pong-100", "video", str(tmp_path / "videos" / "Pong-100.mp4")],
    ]


def test_a_resumed_run_goes_on_under_its_name_at_wandb(tmp_path, wandb):
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        _tracked(tmp_path / folder)
    first, again, other = (given["id"] for given in wandb.inits)
    assert first == again == (tmp_path / "a" / "wandb-id").read_text().strip()
    assert other != first
    assert {given["resume"] for given in wandb.inits} == {"allow"}


def test_a_run_that_writes_no_row_begins_nothing_at_wandb(tmp_path, wandb):
    _tracked(tmp_path, rows=0)
    assert not wandb.inits
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("where", "error"),
    [("init", OSError("no space")), ("log", SystemExit(1)), ("finish", KeyboardInterrupt())],
)
def test_what_wandb_fails_of_is_said_once_and_ends_nothing(tmp_path, wandb, where, error):
    said = []

    def fail(*_, **__):
        raise error

    setattr(wandb, where, fail)
    _tracked(tmp_path, 500, say=said.append)
    (complaint,) = [line for line in said if line.startswith("wandb failed (")]
    assert (str(error) or "KeyboardInterrupt") in complaint
    assert ("WANDB_MODE=offline" in complaint) == (where == "init")


def test_a_wandb_that_never_answers_holds_nothing_up(tmp_path, wandb, monkeypatch):
    monkeypatch.setattr(tracking, "_LAST_ROWS_SECONDS", 0.1)
    answer, said = threading.Event(), []
    wandb.init = lambda **_: answer.wait()
    _tracked(tmp_path, 3000, say=said.append)
    answer.set()
    (complaint,) = said
    assert "wandb is too slow, rows are dropped" in complaint


def test_no_account_is_said_with_what_helps(tmp_path, wandb, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    wandb.offline, wandb.disabled, said = False, True, []
    _tracked(tmp_path, say=said.append)
    assert "no wandb account is configured" in said[0]


def test_the_chronicle_hands_over_the_rows_of_metrics_jsonl(tmp_path, wandb):
    tracked = tracking.Tracking(
        "wandb", WandbTracker(), tracking.TrackedRun(tmp_path, {}, []), print
    )
    chronicle = MetricsWriter(tmp_path, print, tracked)
    for update in (1, 2):
        chronicle.write(_row(update) | {"verdict": "balanced"})
    tracked.end()
    rows = read_rows(tmp_path)
    assert [row.pop("verdict") for row in rows] == ["balanced"] * 2, "a text, of that file alone"
    assert wandb.rows == rows


@pytest.mark.skipif(HERE, reason="wandb is installed here")
@pytest.mark.parametrize("learners", [1, pytest.param(2, marks=needs_horovod)])
def test_without_wandb_the_flag_is_refused_before_anything_starts(tmp_path, learners):
    (tmp_path / "wandb").mkdir()  # a folder of wandb's files is not the package
    logdir = tmp_path / "run"
    code, printed = run(
        *(*EXPERIMENT, "--track", f"--logdir={logdir}", f"--num_learners={learners}"),
        cwd=tmp_path,
    )
    assert code == 2
    assert "error: --track=wandb: wandb is not installed" in printed
    assert not logdir.exists()


def _records(path):
    """Yield the records in a file of wandb, which has the format of LevelDB's logs."""
    from wandb.proto.wandb_internal_pb2 import Record  # noqa: PLC0415

    data, at, text = path.read_bytes(), 7, b""
    while at < len(data):
        if (left := _BLOCK - at % _BLOCK) < 7:  # too few bytes of this block for a header
            at += left
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        text = (text if kind in {3, 4} else b"") + data[at + 7 : at + 7 + size]
        if kind in {1, 4}:  # complete, or the last part
            yield Record.FromString(text)
        at += 7 + size


_BLOCK = 32768


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="wandb is not installed here: pip install wandb")
def test_wandb_itself_keeps_a_resumed_run_offline_with_all_that_belongs_to_it(tmp_path):
    logdir = tmp_path / "run"
    home = {"HOME": str(tmp_path / "home"), "PYTHONPATH": os.pathsep.join(sys.path)}
    for frames in (2_000, 4_000):
        code, printed = run(
            *(*EXPERIMENT, "--level_name=CartPole-v1", "--track=wandb", "--track_tags=a,b"),
            *(f"--logdir={logdir}", f"--learner_hosts=localhost:{free_port()}"),
            *("--num_actors=1", f"--total_environment_frames={frames}"),
            **home,
            WANDB_MODE="offline",
        )
        assert code == 0, printed
        assert f"tracked in {logdir / 'wandb'}" in printed
        assert "wandb failed" not in printed
    identity = (logdir / "wandb-id").read_text().strip()
    kept = sorted((logdir / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(kept) == 2
    rows, logged = read_rows(logdir), []
    for path in kept:
        found = list(_records(path))
        (began,) = [each.run for each in found if each.HasField("run")]
        assert list(began.tags) == ["a", "b"]
        logged += [
            {"/".join(item.nested_key): json.loads(item.value_json) for item in each.history.item}
            for each in found
            if each.HasField("history")
        ]
    for name in ("frames", "episode_return", "loss/total"):
        assert [row.get(name) for row in logged] == [row.get(name) for row in rows]
    (content,) = next(
        each for each in found if each.HasField("artifact")
    ).artifact.manifest.contents
    assert Path(content.local_path).is_relative_to(logdir), "a run is one folder"
    assert not (tmp_path / "home" / ".local").exists()
