"""A run whose folder is lost ends, and all that it writes from then on is in a folder beside it."""

import dataclasses
import json
import shutil
import types

import in_threads
import pytest
import resuming
import tensorflow as tf
from supervising import until

from impala_mm.learner.checkpointing import JointSaves
from impala_mm.learner.own_state import OwnState
from impala_mm.records import checkpoint
from impala_mm.records.outputs import make_outputs
from impala_mm.records.run_folder import RunFolder
from impala_mm.runtime.log import ProcessLogger


@pytest.mark.slow  # it takes 3 s until a folder counts as lost, and TensorFlow makes graphs
@pytest.mark.parametrize(("kind", "more"), [("impala", set()), ("sac", {"own"})])
def test_the_last_state_and_the_end_are_in_the_new_folder_and_the_run_resumes_there(
    kind, more, tmp_path
):
    """SAC saves its replay, together with the other learners; IMPALA has no state of its own."""
    path, contents = tmp_path / "run", resuming.record(kind)
    config = dataclasses.replace(
        resuming.CONFIGS[kind],
        logdir=str(path),
        on_event="echo $IMPALA_MM_EVENT $IMPALA_MM_LOGDIR",
    )
    folder = RunFolder(config)
    folder.write_start(config, ["a:1"], 0.0)
    outputs = make_outputs(config, folder, ProcessLogger("learner"))
    _, watch = resuming.train(kind, path, 5, contents, outputs.say, folder=folder, outputs=outputs)
    checkpoints = path / "checkpoints"

    def remove_once_it_has_saved():
        if (checkpoints / "0000000005").exists():
            path.rename(tmp_path / "elsewhere")
            shutil.rmtree(tmp_path / "elsewhere")

    row = watch.run(remove_once_it_has_saved)
    beside = tmp_path / "run+2"
    lost = f"{path} was removed during the run"
    assert row["updates"] == 5
    assert row["verdict"].endswith(lost)
    assert watch.why_unsaved == lost
    assert watch.exit_code([]) == 2
    until(lambda: f"save {beside}" in (beside / "on_event.log").read_text(), 20)

    assert not path.exists()
    assert checkpoint.find(beside)[1].updates == 5
    names = {each.name for each in beside.iterdir() if not each.name.startswith("code-")}
    by_time = {"hosts.jsonl"}  # it has a row every 10 s
    assert names - more - by_time == {
        *("README.txt", "checkpoints", "events", "learner.log", "lock", "metrics.jsonl"),
        *("on_event.log", "settings.json", "starts.jsonl"),
    }
    assert more <= names
    last = (beside / "metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["verdict"] == row["verdict"]
    log = (beside / "learner.log").read_text()
    assert f"error: {lost}: the run ends, and saves its last state to {beside}" in log
    assert "checkpoint at update 5" in log
    assert any((beside / "events").iterdir())

    said = []
    again, _ = resuming.train(kind, beside, 5, contents, said.append)
    assert again.updates == 5
    assert bool(again.own_state) == bool(more)
    assert any(line.startswith("restored its replay") for line in said) == bool(more)


def test_all_learners_save_where_learner_0_says_the_run_goes_on(tmp_path):
    """Each saves its state again after the same update: the new folder has none."""
    first, beside = tmp_path / "run", tmp_path / "run+2"
    for folder in (first, beside):
        folder.mkdir()
    places, digests = iter(("", "", str(beside), str(beside))), []
    keeper = types.SimpleNamespace(
        newest_updates=list,
        take_snapshot=lambda saved, began: digests.append([each.digest for each in saved]),
    )

    def train(group):
        state = OwnState(first, group.rank, 2, None, [tf.Variable(1.0)], print)
        learner = types.SimpleNamespace(updates=0, own_state=state, group=group)
        is_first = group.rank == 0
        joint = JointSaves(
            learner, keeper if is_first else None, (lambda: next(places)) if is_first else str
        )
        for learner.updates in (0, 7, 7, 7):
            joint.save()

    in_threads.together(2, train)
    assert [len(each) for each in digests] == [2, 2]
    saved = {str(each.relative_to(tmp_path)) for each in tmp_path.glob("*/own/*/*")}
    assert saved == {
        f"{run.name}/own/learner-{rank}/0000000007" for run in (first, beside) for rank in (0, 1)
    }
