"""impala-mm card: the folder of a model, its metadata, and its upload to a stand-in for the hub."""

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

import numpy as np
import pytest
import yaml
from processes import run
from saved_run import save

import impala_mm
from impala_mm.jobs import card
from impala_mm.records import checkpoint

TESTED = {
    "level": "catch", "updates": 1, "mean": 0.5, "deviation": 0.25, "returns": [0.25, 0.75],
    "deterministic": True, "video": "videos/new.mp4",
}  # fmt: skip


@pytest.fixture
def logdir(tmp_path):
    path = tmp_path / "run"
    save(path, agent_name="MLPAgent", level_name="catch", learning_rate=0.125)
    return path


def _metadata(folder):
    _, metadata, page = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), page


def test_a_card_has_the_policy_the_newest_result_of_its_checkpoint_the_flags_and_a_video(
    logdir, tmp_path
):
    other = TESTED | {"updates": 9, "mean": 9.0}
    rows = [TESTED | {"mean": 0.1}, TESTED, other, {"level": "catch", "updates": 1}]
    (logdir / "evaluations.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (logdir / "videos").mkdir()
    for name in ("new.mp4", "zlater.mp4"):
        (logdir / "videos" / name).write_text(name)
    folder = tmp_path / "model"
    card.main([str(logdir), str(folder)])
    metadata, page = _metadata(folder)
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"] == {"name": "catch", "type": "catch"}
    (metric,) = result["metrics"]
    assert (metric["type"], metric["value"]) == ("mean_reward", "0.50 +/- 0.25")
    assert {"reinforcement-learning", "impala_mm", "impala", "catch"} <= set(metadata["tags"])
    assert "--learning_rate=0.125" in page.splitlines()
    assert "--seed" not in page
    assert (folder / "replay.mp4").read_text() == "new.mp4"
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["learning_rate"] == 0.125
    assert "logdir" not in settings, "what belongs to this machine stays here"
    ours, theirs = (impala_mm.load_policy(path) for path in (folder, logdir))
    shape, dtype = ours.spec.observation.shape, ours.spec.observation.dtype.as_numpy_dtype
    seen = np.arange(np.prod(shape)).reshape([1, *shape]).astype(dtype)
    np.testing.assert_array_equal(ours.values(seen), theirs.values(seen))


def test_without_tested_games_the_mean_return_of_training_counts_or_there_is_no_result(
    logdir, tmp_path, capsys
):
    card.main([str(logdir), str(tmp_path / "a")])
    assert "model-index" not in _metadata(tmp_path / "a")[0]
    assert "no games were tested" in capsys.readouterr().out
    checkpoint.change(next((logdir / "checkpoints").iterdir()), {"episode_return": 0.75})
    card.main([str(logdir), str(tmp_path / "b")])
    (result,) = _metadata(tmp_path / "b")[0]["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == "0.75"


@pytest.fixture
def hub(monkeypatch):
    module = MagicMock(__spec__=ModuleSpec("huggingface_hub", None, origin="here"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return module.HfApi.return_value


def test_the_folder_is_uploaded_and_stays_where_that_fails(logdir, tmp_path, hub, capsys):
    hub.create_repo.return_value = "https://hub/me/catch"
    folder = tmp_path / "model"
    card.main([str(logdir), str(folder), "--upload=me/catch"])
    hub.create_repo.assert_called_once_with("me/catch", private=True, exist_ok=True)
    given = hub.upload_folder.call_args.kwargs
    assert (given["repo_id"], given["folder_path"]) == ("me/catch", folder)
    assert "uploaded to https://hub/me/catch" in capsys.readouterr().out
    hub.create_repo.side_effect = OSError("no token")
    with pytest.raises(SystemExit):
        card.main([str(logdir), str(tmp_path / "other"), "--upload=me/catch"])
    assert "hf auth login" in capsys.readouterr().err
    assert (tmp_path / "other" / "README.md").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "model", "--upload=me"], "write OWNER/NAME"),
        (["run", "model", "--upload=me/it"], "needs huggingface_hub"),
        (["run", "there"], "there exists: name a new folder"),
        (["absent", "model"], "absent does not exist"),
    ],
)
def test_what_is_missing_is_said_and_nothing_written(
    logdir, tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    found = importlib.util.find_spec
    hidden = lambda name: None if name == "huggingface_hub" else found(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    with pytest.raises(SystemExit):
        card.main(arguments)
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.slow  # the other tests write cards in this process
def test_the_command_writes_a_policy_of_this_package(tmp_path):
    code = "from impala_mm import console; console.run_impala_mm()"
    folder = tmp_path / "model"
    code, printed = run(sys.executable, "-c", code, "card", "cartpole", str(folder))
    assert code == 0, printed
    assert "CartPole-v1: " in printed
    assert {"README.md", "about.json", "settings.json"} <= {p.name for p in folder.iterdir()}
