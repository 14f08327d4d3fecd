"""--track=trackio and --track=mlflow: rows, settings and files arrive, and resumed runs go on."""

import importlib.util
import os
import sqlite3
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock, call

import pytest
from processes import EXPERIMENT, run

from impala_mm.records import TRACKERS, tracking


def _tracked(name, folder, settings=None, tags=()):
    """Track a run of two rows to its end, and return what was said."""
    said = []
    tracked_run = tracking.TrackedRun(folder, settings or {}, [*tags])
    tracked = tracking.Tracking(name, tracking.make_tracker(name), tracked_run, said.append)
    for update in range(2):
        tracked.write({"frames": 100.0 * update, "episode_return/a{b}:c": update / 2})
    tracked.end()
    return said


def _stand_in(monkeypatch, name, **attributes):
    module = MagicMock(__spec__=ModuleSpec(name, None, origin="here"), **attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_trackio_gets_rows_at_their_frames_settings_and_files(tmp_path, monkeypatch):
    trackio = _stand_in(monkeypatch, "trackio")
    monkeypatch.delenv("TRACKIO_SPACE_ID", raising=False)
    (tmp_path / "settings.json").touch()
    said = _tracked("trackio", tmp_path, {"seed": 1, "max_seconds": float("inf")}, ["a"])
    assert said == ["`trackio show --project impala_mm`"]
    begun, logged = trackio.init.call_args.kwargs, trackio.init.return_value
    assert begun["config"] == {"seed": 1, "max_seconds": "inf", "tags": ["a"]}
    key = "episode_return/a{b}:c"
    rows = [({"frames": 0.0, key: 0.0}, 0), ({"frames": 100.0, key: 0.5}, 100)]
    assert logged.log.call_args_list == [call(row, step=step) for row, step in rows]
    number = begun["name"].removeprefix(f"{tmp_path.name}-")
    assert logged.log_artifact.call_args_list == [
        call(tmp_path / "settings.json", name=f"settings-{number}-settings", type="settings")
    ]
    trackio.finish.assert_called_once_with()
    _tracked("trackio", tmp_path)
    again = trackio.init.call_args.kwargs
    assert (again["name"], again["resume"]) == (begun["name"], "allow")


def test_mlflow_gets_rows_at_their_frames_settings_once_and_files(tmp_path, monkeypatch):
    entities = SimpleNamespace(Param=lambda *args: args, Metric=lambda *args: args)
    mlflow = _stand_in(monkeypatch, "mlflow", entities=entities)
    client = mlflow.MlflowClient.return_value
    client.get_experiment_by_name.return_value = None
    client.create_experiment.return_value = "7"
    client.create_run.return_value.info.run_id = "r1"
    client.tracking_uri = "sqlite:///x.db"
    (tmp_path / "settings.json").touch()
    settings = {f"flag{i}": i for i in range(150)}
    assert _tracked("mlflow", tmp_path, settings, ["a"]) == ["tracked at sqlite:///x.db, as run r1"]
    client.create_run.assert_called_once_with("7", tags={"a": "yes"}, run_name=tmp_path.name)
    batches = [each.kwargs for each in client.log_batch.call_args_list]
    params = [pair for each in batches for pair in each.get("params", [])]
    assert params == [(name, str(value)) for name, value in settings.items()]
    assert max(len(each.get("params", [])) for each in batches) <= 100, "MLflow takes no more"
    metrics = [m for each in batches for m in each.get("metrics", [])]
    assert [(key, value, step) for key, value, _, step in metrics] == [
        *[("frames", 0.0, 0), ("episode_return/a_b_:c", 0.0, 0)],
        *[("frames", 100.0, 100), ("episode_return/a_b_:c", 0.5, 100)],
    ]
    client.log_artifact.assert_called_once_with("r1", str(tmp_path / "settings.json"), "settings")
    client.set_terminated.assert_called_once_with("r1")
    client.reset_mock()
    _tracked("mlflow", tmp_path, {"flag0": "another"})
    assert not client.create_run.called
    assert client.log_batch.call_args.args == ("r1",)
    assert not any("params" in each.kwargs for each in client.log_batch.call_args_list)


@pytest.mark.parametrize("name", TRACKERS.names)
def test_a_tracker_that_is_not_installed_is_refused(name, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        tracking.make_tracker(name)
    assert f"--track={name}: {name} is not installed" in capsys.readouterr().err


def _train(name, logdir, frames, **variables):
    code, printed = run(
        *(*EXPERIMENT, "--level_name=catch", f"--track={name}", "--track_tags=a", "--num_actors=1"),
        *(f"--logdir={logdir}", f"--total_environment_frames={frames}"),
        cwd=logdir.parent,  # where MLflow keeps files beside a local database
        PYTHONPATH=os.pathsep.join(sys.path),
        **variables,
    )
    assert code == 0, printed
    assert f"{name} failed" not in printed
    return printed


@pytest.mark.slow
def test_mlflow_itself_holds_a_resumed_run_as_one(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for frames in (2_000, 4_000):
        said = _train("mlflow", tmp_path / "run", frames, MLFLOW_TRACKING_URI=uri)
        assert f"tracked at {uri}" in said
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("impala_mm").experiment_id])
    assert found.info.run_id == (tmp_path / "run" / "mlflow-id").read_text().strip()
    assert found.info.status == "FINISHED"
    assert found.data.params["level_name"] == "catch"
    assert found.data.tags["a"] == "yes"
    steps = [m.step for m in client.get_metric_history(found.info.run_id, "frames_per_second")]
    assert max(steps) >= 4_000
    assert len(steps) > 1


@pytest.mark.slow
def test_trackio_itself_holds_a_resumed_run_as_one(tmp_path):
    pytest.importorskip("trackio")
    for frames in (2_000, 4_000):
        _train("trackio", tmp_path / "run", frames, TRACKIO_DIR=str(tmp_path / "kept"))
    (path,) = (tmp_path / "kept").glob("*.db")
    rows = sqlite3.connect(path).execute("select run_name, step from metrics").fetchall()
    assert {name for name, _ in rows} == {
        f"run-{(tmp_path / 'run/trackio-id').read_text().strip()}"
    }
    assert max(step for _, step in rows) >= 4_000
