"""--track: wandb gets rows and settings, and nothing that it does harms a run."""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock, call

import pytest
from processes import EXPERIMENT, free_port, needs_horovod, run
from rows import read_rows

from impala_mm.records import tracking
from impala_mm.records.metrics_writer import MetricsWriter
from impala_mm.records.trackers import WandbTracker

HERE = importlib.util.find_spec("wandb") is not None


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
    spec = ModuleSpec("wandb", None, origin="here")
    stand_in = MagicMock(offline=True, disabled=False, url=None, __spec__=spec)
    stand_in.init.return_value = stand_in
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    return stand_in


def _row(update):
    return {"frames": 100.0 * update, "updates": update, "episode_return": update / 2}


def test_wandb_gets_every_row_in_order_and_the_settings(tmp_path, wandb):
    said = []
    settings = {"level_name": "catch", "max_seconds": float("inf")}
    _tracked(tmp_path, 50, settings, said.append)
    *logged, finish, tear_down = wandb.method_calls[2:]
    assert logged == [call.log(_row(update)) for update in range(50)]
    assert (finish, tear_down) == (call.finish(), call.teardown()), "its process would outlive it"
    wandb.define_metric.assert_called_once_with("*", step_metric="frames")
    given = wandb.init.call_args.kwargs
    assert given["config"] == {"level_name": "catch", "max_seconds": "inf"}
    assert given["dir"] == str(tmp_path)
    assert given["name"] == tmp_path.name
    assert [line.startswith(f"tracked in {tmp_path / 'wandb'}") for line in said] == [True]


def test_wandb_gets_tags_and_the_files_of_the_folder_as_artifacts(tmp_path, wandb):
    (tmp_path / "videos").mkdir()
    names = ("settings.json", "report.html", "videos/Pong-100.mp4", "learner.log")
    for name in names:
        (tmp_path / name).touch()
    _tracked(tmp_path, tags=["a", "b"])
    assert wandb.init.call_args.kwargs["tags"] == ["a", "b"]
    run = (tmp_path / "wandb-id").read_text().strip()
    made = [(each.args[0], each.kwargs["type"]) for each in wandb.Artifact.call_args_list]
    assert made == [
        (f"settings-{run}-settings", "settings"),
        (f"report-{run}-report", "report"),
        (f"video-{run}-Pong-100", "video"),
    ]
    artifact = wandb.Artifact.return_value
    added = [call.add_file(str(tmp_path / name)) for name in names[:3]]
    assert artifact.method_calls == added
    assert wandb.log_artifact.call_args_list == [call(artifact)] * 3


def test_a_resumed_run_goes_on_under_its_name_at_wandb(tmp_path, wandb):
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        _tracked(tmp_path / folder)
    given = [each.kwargs for each in wandb.init.call_args_list]
    first, again, other = (each["id"] for each in given)
    assert first == again == (tmp_path / "a" / "wandb-id").read_text().strip()
    assert other != first
    assert {each["resume"] for each in given} == {"allow"}


@pytest.mark.parametrize(
    ("where", "error"),
    [("init", OSError("no space")), ("log", SystemExit(1)), ("finish", KeyboardInterrupt())],
)
def test_what_wandb_fails_of_is_said_once_and_ends_nothing(tmp_path, wandb, where, error):
    said = []
    getattr(wandb, where).side_effect = error
    _tracked(tmp_path, 500, say=said.append)
    (complaint,) = [line for line in said if line.startswith("wandb failed (")]
    assert (str(error) or "KeyboardInterrupt") in complaint
    assert ("WANDB_MODE=offline" in complaint) == (where == "init")


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
    assert wandb.log.call_args_list == [call(row) for row in rows]


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
    assert all(b"episode_return" in path.read_bytes() for path in kept)
    assert not (tmp_path / "home" / ".local").exists()
