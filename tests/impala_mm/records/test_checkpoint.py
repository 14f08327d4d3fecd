"""Checkpoints appear complete or not at all; for a damaged one the previous one is used."""

import resource
from types import SimpleNamespace

import pytest
import tensorflow as tf

from impala_mm.data.variables import Variables
from impala_mm.records import checkpoint, saved_variables
from impala_mm.records.checkpoint import CheckpointInfo, Damaged, Mismatch, Missing, Unwritable
from impala_mm.records.run_checkpoints import Checkpoints

ABOUT = CheckpointInfo(1, {"batch_size": 8}, {"--agent_name": "MLPAgent"}, {"python": "3"})


@pytest.fixture
def variables():
    trained = [tf.Variable(tf.zeros([300, 2])), tf.Variable(0.0)]
    carried = [tf.Variable(0, dtype=tf.int64), tf.Variable([0.0, 0.0])]
    return Variables(trained, carried, acting=[*trained, carried[1]])


def _save(checkpoints, variables, update, **more):
    for variable in [*variables.trained, *variables.carried]:
        variable.assign(tf.cast(tf.fill(variable.shape, update), variable.dtype))
    checkpoints.snapshot()
    variables.trained[0].assign_add(tf.ones([300, 2]))  # training continues meanwhile
    return checkpoints.save(ABOUT._replace(updates=update, **more))


def _restore(tmp_path, variables, check=lambda about: None):
    said = []
    return Checkpoints(tmp_path, variables, 3).restore(said.append, check), said


def test_what_was_saved_comes_back_as_it_was_when_the_snapshot_was_taken(tmp_path, variables):
    assert _restore(tmp_path, variables) == (None, [])
    checkpoints = Checkpoints(tmp_path, variables, 3)
    for update in (1, 2):
        path = _save(checkpoints, variables, update, frames=10.0 * update, seconds=0.5)
    variables.trained[0].assign(tf.ones([300, 2]) * 7)
    about, said = _restore(tmp_path, variables)
    assert about == ABOUT._replace(updates=2, frames=20.0, seconds=0.5)
    assert not said
    for variable in [*variables.trained, *variables.carried]:
        assert (variable.numpy() == 2).all()
    assert checkpoint.verify(path) == about
    assert not (tmp_path / "checkpoints" / "saving").exists()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "about.json").write_text('{"upd'), "has no about.json that can"),
        (lambda folder: _cut(_data(folder)), "is cut short since it was written"),
        (lambda folder: _flip(_data(folder)), "is changed since it was written"),
        (lambda folder: _data(folder).unlink(), "cannot be read: No such file"),
    ],
)
def test_a_damaged_one_is_said_and_put_aside_and_the_one_before_is_used(
    tmp_path, variables, harm, said
):
    checkpoints = Checkpoints(tmp_path, variables, 3)
    _save(checkpoints, variables, 1)
    harm(_save(checkpoints, variables, 2))
    path, about = checkpoint.find(tmp_path)
    assert (path.name, about.updates) == ("0000000001", 1), "who only reads passes it over"
    about, lines = _restore(tmp_path, variables)
    assert about.updates == 1
    assert len(lines) == 1
    assert said in lines[0]
    assert "0000000002" in lines[0]
    assert (variables.trained[0].numpy() == 1).all()
    _save(checkpoints, variables, 2)  # the damaged one was renamed
    assert checkpoint.find(tmp_path)[1].updates == 2
    harm(checkpoint.find(tmp_path)[0])
    assert _restore(tmp_path, variables)[0].updates == 1
    aside = {path.name for path in (tmp_path / "checkpoints").glob("damaged*")}
    assert aside == {"damaged-0000000002", "damaged-0000000002-2"}


def _data(folder):
    return next(folder.glob("variables.data*"))


def _cut(path):
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def _flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_where_all_are_damaged_the_run_is_not_begun_anew_in_silence(tmp_path, variables):
    _cut(_data(_save(Checkpoints(tmp_path, variables, 3), variables, 1)))
    with pytest.raises(Damaged, match=r"is intact: .* is cut short"):
        checkpoint.find(tmp_path)
    for _ in range(2):  # the second start does the same
        with pytest.raises(Damaged, match="is intact"):
            _restore(tmp_path, variables)


def test_one_of_another_shape_is_refused_by_the_variables_name_and_changes_nothing(
    tmp_path, variables
):
    path = _save(Checkpoints(tmp_path, variables, 3), variables, 1)
    other = [tf.Variable(5.0, name="bias"), tf.Variable([5.0, 5.0, 5.0], name="weights")]
    trained = [variables.trained[0], other[0]]
    with pytest.raises(Mismatch, match=r"weights has shape \[3\], but .*01 holds shape"):
        saved_variables.load(path, saved_variables.keyed("trained", [*trained[:1], other[1]]))
    with pytest.raises(Mismatch, match=r"weights has shape \[3\], but .*01 lacks it"):
        saved_variables.load(path, saved_variables.keyed("trained", [*trained, other[1]]))
    assert float(other[0]) == 5

    def check(about):
        raise Mismatch("not this run's")

    with pytest.raises(Mismatch, match="not this run's"):
        _restore(tmp_path, variables, check)
    assert path.exists()


def test_the_newest_the_best_and_milestones_are_kept(tmp_path, variables):
    checkpoints = Checkpoints(tmp_path, variables, keep=2)
    returns = [None, 3.0, 9.0, 4.0, 9.0, 5.0, 1.0, 2.0]
    for update, known in enumerate(returns, 1):
        _save(checkpoints, variables, update, episode_return=known, milestone=update == 4)
    kept = [int(path.name) for path in checkpoint.all_in(tmp_path / "checkpoints")]
    assert kept == [4, 5, 7, 8]
    assert checkpoint.find(tmp_path, best=True)[1].updates == 5
    assert checkpoint.find(tmp_path)[1].updates == 8
    assert checkpoint.find(tmp_path / "checkpoints" / "0000000007")[1].updates == 7


def test_beyond_a_number_of_bytes_milestones_are_removed_first_and_each_kind_is_said_once(
    tmp_path, variables
):
    size = checkpoint.size(_save(Checkpoints(tmp_path, variables, 3), variables, 1))
    said = []
    checkpoints = Checkpoints(tmp_path, variables, 3, 3.5 * size, said.append)
    for update in range(2, 8):
        best = 9.0 if update == 3 else 1.0
        _save(checkpoints, variables, update, episode_return=best, milestone=update < 5)
    kept = [int(path.name) for path in checkpoint.all_in(tmp_path / "checkpoints")]
    assert kept == [3, 6, 7], "the best one, and the newest ones for which there is room"
    assert [line.partition(" was removed")[0] for line in said] == [
        "the milestone of update 2",
        "the checkpoint of update 4",
    ]
    assert "more than --checkpoint_max_gb=" in said[0]
    tight = Checkpoints(tmp_path, variables, 3, 1.0, said.append)
    _save(tight, variables, 8, episode_return=1.0)
    kept = [int(path.name) for path in checkpoint.all_in(tmp_path / "checkpoints")]
    assert kept == [3, 8], "the newest and the best one always stay"


def test_a_disk_without_room_for_another_one_is_said_before_it_is_filled(
    tmp_path, variables, monkeypatch
):
    checkpoints = Checkpoints(tmp_path, variables, 3)
    _save(checkpoints, variables, 1)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: SimpleNamespace(free=999))
    with pytest.raises(Unwritable, match=r"the disk of .*checkpoints has 0.0 MB free"):
        _save(checkpoints, variables, 2)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["0000000001"]


def test_a_save_that_fails_or_was_killed_leaves_nothing_in_the_next_one(tmp_path, variables):
    """The disk fills while the variables are written."""
    checkpoints, folder = Checkpoints(tmp_path, variables, 3), tmp_path / "checkpoints"
    _save(checkpoints, variables, 1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(Unwritable, match=r"^File too large"):
            _save(checkpoints, variables, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in folder.iterdir()] == ["0000000001"]
    (folder / "saving" / "inner").mkdir(parents=True)
    (folder / "saving" / "inner" / "half").touch()
    path = _save(checkpoints, variables, 2)
    assert {each.name for each in folder.iterdir()} == {"0000000001", "0000000002"}
    assert {each.name for each in path.iterdir()} == {
        *("about.json", "variables.index", "variables.data-00000-of-00001")
    }
    checkpoint.verify(path)
    assert checkpoints.save(ABOUT._replace(updates=2, frames=9.0)) == path
    assert checkpoint.verify(path).frames == 0, "a checkpoint is never written again"
    for lost in (tmp_path / "lost", tmp_path / "file" / "lost"):
        (tmp_path / "file").touch()
        with pytest.raises(Unwritable):
            _save(Checkpoints(lost, variables, 3), variables, 3)
        assert not lost.exists(), "the run's folder itself is never made anew"


def test_a_fault_that_is_not_the_disks_leaves_nothing_either(tmp_path, variables, monkeypatch):
    monkeypatch.setattr(checkpoint, "finish", lambda *_: {}["fault"])
    with pytest.raises(KeyError, match="fault"):
        _save(Checkpoints(tmp_path, variables, 3), variables, 1)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_copy_under_a_name_of_the_users_is_neither_counted_nor_deleted(tmp_path, variables):
    checkpoints = Checkpoints(tmp_path, variables, keep=1)
    path = _save(checkpoints, variables, 1)
    copy = path.rename(f"{path}.bak")
    for update in (2, 3):
        _save(checkpoints, variables, update)
    assert copy.exists()
    assert [path.name for path in checkpoint.all_in(tmp_path / "checkpoints")] == [f"{3:010d}"]


def test_weights_are_what_learns_or_acts_without_slots(variables):
    acting = ["trained/0", "trained/1", "acting/0"]
    assert list(saved_variables.named(variables)) == [*acting, "carried/0"]
    assert list(saved_variables.named_weights(variables)) == acting
    assert list(saved_variables.named_for_acting(variables)) == acting


def test_train_from_takes_the_carried_weights_that_acting_does_not_need(tmp_path, variables):
    """A target network is loaded, whatever slots stand before it; optimizer slots are not."""
    slot, target = tf.Variable(0.0), tf.Variable([0.0, 0.0])
    theirs = variables._replace(carried=[slot, *variables.carried, target], weights=[target])
    path = _save(Checkpoints(tmp_path, theirs, 3), theirs, 7)
    for variable in theirs.carried:
        variable.assign(tf.zeros_like(variable))
    ours = theirs._replace(carried=[target, variables.carried[1], slot])
    saved_variables.load(path, saved_variables.named_weights(ours))
    assert target.numpy().tolist() == [7, 7]
    assert variables.carried[1].numpy().tolist() == [7, 7], "it acts"
    assert float(slot) == 0
    assert "weights/0" not in saved_variables.named_for_acting(ours)


def test_where_there_is_none_it_is_said_what_is_there(tmp_path):
    folder = tmp_path / "run"
    for make, said in (
        (lambda: None, "does not exist"),
        (folder.mkdir, "is not the folder of a run"),
        ((folder / "metrics.jsonl").touch, "no checkpoint yet"),
    ):
        make()
        with pytest.raises(Missing, match=said):
            checkpoint.find(folder)
    # So it is with a folder that this user may not enter, but root may enter any.
    with pytest.raises(Missing, match=r"/x+: File name too long$"):
        checkpoint.find(tmp_path / ("x" * 300))
