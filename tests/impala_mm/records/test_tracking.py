"""--track with a tracker of the user's, which needs four methods."""

import importlib
import json
import sys

import pytest
from processes import EXPERIMENT, run

from impala_mm.config import command_line, flags
from impala_mm.config.errors import BadSettings
from impala_mm.config.registry import Registry
from impala_mm.config.settings import Config
from impala_mm.records import TRACKERS, tracking

MINE = """
import json
from pathlib import Path

class MyTracker:
    def begin(self, run):
        self.told = {"tags": run.tags, "level": run.settings["level_name"], "rows": 0, "files": []}
        return f"mine follows {run.logdir.name}"

    def log(self, row):
        assert row["frames"] >= 0
        self.told["rows"] += 1

    def add_file(self, path, kind):
        self.told["files"].append([kind, path.name])

    def finish(self):
        Path("told.json").write_text(json.dumps(self.told))

class Half:
    def log(self, row):
        pass
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (["--track", "--seed=3"], "wandb"), (["--notrack"], ""), (["--track=true"], "wandb"),
        (["--track=mine.MyTracker"], "mine.MyTracker"),
    ],
)  # fmt: skip
def test_the_flag_may_be_given_without_a_value(given, value):
    (config,), _ = command_line.parse(["experiment.py", *given], "", Config)
    assert config.track == value


def test_a_tracker_that_a_module_of_ones_own_registers_is_named_like_ours(here, monkeypatch):
    registry = Registry("tracker", dict.fromkeys(TRACKERS.names))
    monkeypatch.setattr(tracking, "TRACKERS", registry)
    monkeypatch.syspath_prepend(here)
    mine = importlib.import_module("mine")
    registry.register("mine", mine.MyTracker)
    assert isinstance(tracking.make_tracker("mine"), mine.MyTracker)
    with flags.refusals_raised():
        with pytest.raises(
            BadSettings, match="--track=other: write wandb or trackio or mlflow or mine"
        ):
            tracking.make_tracker("other")
        with pytest.raises(BadSettings, match=r"--track=absent.Tracker: "):
            tracking.make_tracker("absent.Tracker")
        with pytest.raises(BadSettings, match="mine has no class Absent"):
            tracking.make_tracker("mine.Absent")
        with pytest.raises(BadSettings, match="no method begin or add_file or finish"):
            tracking.make_tracker("mine.Half")


@pytest.mark.slow
def test_a_tracker_of_ones_own_gets_rows_tags_and_files(here):
    flags = ("--level_name=catch", "--max_seconds=4", "--num_actors=1", "--logdir=run")
    code, printed = run(
        *EXPERIMENT, *flags, "--track=mine.MyTracker", "--track_tags=a, b", cwd=here
    )
    assert code == 0, printed
    assert "mine follows run" in printed
    told = json.loads((here / "told.json").read_text())
    assert told["tags"] == ["a", "b"]
    assert told["level"] == "catch"
    assert told["rows"] == len((here / "run" / "metrics.jsonl").read_text().splitlines()) > 0
    assert told["files"] == [["settings", "settings.json"]]
