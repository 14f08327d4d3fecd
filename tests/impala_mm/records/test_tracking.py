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

class Failing(MyTracker):
    def log(self, row):
        raise OSError("its server is away")
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
        ([], ""), (["--track"], "wandb"), (["--notrack"], ""), (["--track=true"], "wandb"),
        (["--track=mine.MyTracker"], "mine.MyTracker"), (["--track", "--seed=3"], "wandb"),
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
    with flags.refusals_raised(), pytest.raises(BadSettings, match="write wandb or mine, or"):
        tracking.make_tracker("other")


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


@pytest.mark.slow
def test_a_tracker_that_fails_ends_nothing(here):
    flags = ("--level_name=catch", "--max_seconds=4", "--num_actors=1", "--logdir=run")
    code, printed = run(*EXPERIMENT, *flags, "--track=mine.Failing", cwd=here)
    assert code == 0, printed
    assert printed.count("mine.Failing failed (its server is away); training continues") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.Absent", "--track=mine.Absent: mine has no class Absent"),
        ("mine.Half", "--track=mine.Half: it has no method begin or add_file or finish"),
        (
            "absent.Tracker",
            "--track=absent.Tracker: write wandb, or a class of yours as my_package.",
        ),
        ("wandbx", "--track=wandbx: write wandb, or a class of yours as my_package.MyTracker: "),
    ],
)
def test_what_is_no_tracker_is_refused_before_anything_starts(here, name, said):
    code, printed = run(*EXPERIMENT, f"--track={name}", "--logdir=run", cwd=here)
    assert code == 2
    assert printed.startswith(f"error: {said}")
    assert not (here / "run").exists()
