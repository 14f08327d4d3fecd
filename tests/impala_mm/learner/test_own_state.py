"""What a learner saves for itself, and what it starts with if that cannot be used."""

import re

import in_threads
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from impala_mm.distributed.group import SingleLearner
from impala_mm.learner.own_state import OwnState, deal_out, reload_source
from impala_mm.learner.sources.own import OwnSource
from impala_mm.records.checkpoint import CheckpointInfo, Mismatch
from tests.impala_mm.learner.sources.test_own import UNROLL, Returning

ABOUT = CheckpointInfo(2, {}, {}, {}, updates=7)


class Counting(Returning):
    """A source whose content is one number; dealt out, it is the list of shares."""

    content, older = 0, 0

    def make_older(self, updates):
        self.older += updates

    def save(self, folder):
        np.save(folder / "content.npy", self.content)

    def restore(self, folder):
        self.content = -1
        self.content = int(np.load(folder / "content.npy"))


class Dealing(Counting):
    def restore_shares(self, shares):
        self.content = [(share.folder.parts[-3], share.first, share.of) for share in shares]


class Learner:
    """A learner's source, local variables and own state."""

    def __init__(self, folder, rank=1, shape=(3,), size=2, kind=Counting):
        self.own_source = OwnSource(lambda fresh: kind(), None, UNROLL)
        self.variable, self.said = tf.Variable(tf.zeros(shape)), []
        self.state = OwnState(
            *(folder, rank, size, self.own_source, [self.variable], self.said.append)
        )

    @property
    def kept(self):
        return self.own_source._source.content, self.variable.numpy().tolist()

    def fill(self, number):
        self.own_source._source.content = number
        self.variable.assign(tf.fill(self.variable.shape, float(number)))


def _saved(folder, number=5, update=7):
    learner = Learner(folder)
    learner.fill(number)
    saved = learner.state.save(update)
    assert not saved.why_not
    return learner, ABOUT._replace(own_states=("", saved.digest), updates=update)


def test_a_resumed_run_has_its_source_and_variables_and_a_new_one_only_another_ones_source(
    tmp_path,
):
    (tmp_path / "old").mkdir()
    _, about = _saved(tmp_path / "old")
    again = Learner(tmp_path / "old")
    again.state.restore(about)
    assert again.kept == (5, [5, 5, 5])
    assert again.said[0].startswith("restored its source and its local variables (")
    new = Learner(tmp_path / "new")
    assert not new.state.restore_source(tmp_path / "old/checkpoints/0000000007", about)
    assert new.kept == (5, [0, 0, 0])
    assert new.own_source._source.older == 7, "its versions are from before this run's updates"
    assert not (tmp_path / "new").exists()


def _path(folder):
    return folder / "own" / "learner-1" / "0000000007"


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_a_replay_that_was_asked_for_and_cannot_be_reloaded_ends_all_learners(tmp_path):
    (tmp_path / "old").mkdir()
    digests = tuple(Learner(tmp_path / "old", rank).state.save(7).digest for rank in range(2))
    _cut(_path(tmp_path / "old") / "source/content.npy")
    about = ABOUT._replace(own_states=digests)

    def start(group):
        state = Learner(tmp_path / "new", group.rank).state
        reload_source(state, tmp_path / "old" / "checkpoints" / "0000000007", about, group)

    found = in_threads.together(2, start)
    assert [type(each) for each in found] == [Mismatch, Mismatch]
    assert str(found[0]) == str(found[1])
    assert re.search(r"--reload_replay: learner 1: .*content.npy is cut short", str(found[0]))


def test_a_state_of_local_variables_alone_is_no_replay(tmp_path):
    state = OwnState(tmp_path, 0, 1, None, [tf.Variable(1.0)], print)
    about, checkpoint = ABOUT._replace(own_states=(state.save(7).digest,)), tmp_path / "check/7"
    learner = Learner(tmp_path / "new", 0, size=1)
    assert "contains no source" in learner.state.restore_source(checkpoint, about)
    with pytest.raises(Mismatch, match="learner 0: it has no replay that is saved"):
        reload_source(None, checkpoint, about, SingleLearner())


@pytest.mark.parametrize(
    ("harm", "about", "said"),
    [
        (lambda path: path.rename(path.with_name("x")), {}, "0000000007 does not exist"),
        (lambda path: _cut(path / "source/content.npy"), {}, "content.npy is cut short"),
        (lambda path: (path / "about.json").unlink(), {}, "about.json"),
        (lambda path: None, {"own_states": ()}, "saved without any"),
        (lambda path: None, {"own_states": ("a",)}, "saved by 1 learner"),
        (lambda path: None, {"own_states": ("a", "")}, "could not be saved"),
        (lambda path: None, {"own_states": ("a", "b")}, "another checkpoint of update 7"),
    ],
)
def test_what_cannot_be_restored_is_said_and_the_learner_starts_without_it(
    tmp_path, harm, about, said
):
    _, saved = _saved(tmp_path)
    harm(_path(tmp_path))
    again = Learner(tmp_path)
    again.state.restore(saved._replace(**about))
    assert again.kept == (0, [0, 0, 0])
    (line,) = again.said
    assert line.startswith("starts with an empty source and fresh local variables: ")
    assert said in line


def test_contents_that_no_longer_fit_leave_the_source_and_the_variables_as_they_are_made(tmp_path):
    _, about = _saved(tmp_path)
    other = Learner(tmp_path, shape=(4,))
    other.state.restore(about)
    assert "has shape [4], but" in other.said[0]
    assert other.kept == (0, [0] * 4)

    class Refusing(Counting):
        def restore(self, folder):
            self.content = -1
            raise KeyError("capacity")

    again = Learner(tmp_path, kind=Refusing)
    again.own_source._source = Refusing()
    again.state.restore(about)
    assert "KeyError: 'capacity'" in again.said[0]
    assert again.kept == (0, [0] * 3)


def test_a_save_that_fails_leaves_the_earlier_state_and_says_why(tmp_path, capsys):
    learner, _ = _saved(tmp_path)

    def fail(folder):
        (folder / "half").write_text("half")
        raise ValueError("no longer finite")

    learner.own_source._source.save = fail
    assert learner.state.save(8) == ("", "ValueError: no longer finite")
    assert "Traceback" in capsys.readouterr().err
    learner.own_source._source.save = lambda folder: (_ for _ in ()).throw(OSError(28, "No space"))
    assert "No space" in learner.state.save(8).why_not
    assert [p.name for p in (tmp_path / "own/learner-1").iterdir()] == ["0000000007"]
    (tmp_path / "own/learner-1/saving/source").mkdir(parents=True)  # of a process that was killed
    (tmp_path / "own/learner-1/saving/source/half").touch()
    learner.own_source._source.save = lambda folder: (folder / "content.npy").touch()
    for _ in range(2):  # the second one replaces the first
        assert learner.state.save(8).digest
        state = tmp_path / "own/learner-1/0000000008"
        assert [p.name for p in (state / "source").iterdir()] == ["content.npy"]
        assert {p.name for p in state.parent.iterdir()} == {"0000000007", "0000000008"}
    learner.state._bytes = 10**18
    assert "MB free, and the last save took" in learner.state.save(8).why_not
    assert not (tmp_path / "own/learner-1/saving").exists()


def test_a_learner_without_anything_of_its_own_writes_nothing(tmp_path):
    source = OwnSource(lambda fresh: Returning(), None, UNROLL)
    assert not OwnState(tmp_path, 0, 1, source, [], print)
    assert not OwnState(tmp_path, 0, 1, None, (), print)
    assert OwnState(tmp_path, 0, 1, None, [tf.Variable(0)], print)


def test_the_states_of_learners_that_the_run_has_no_more_go_with_their_checkpoints(tmp_path):
    """A run of three learners continues with one; its older checkpoints may still be resumed."""
    for rank in (0, 1, 2):
        for update in (1, 2):
            Learner(tmp_path, rank, size=3).state.save(update)
    (tmp_path / "own/learner-notes").mkdir()
    alone = Learner(tmp_path, 0, size=1)
    alone.state.save(3)
    alone.state.prune([2, 3])
    left = {str(p.relative_to(tmp_path / "own")) for p in tmp_path.glob("own/*/*")}
    assert left == {f"learner-{n}/0000000002" for n in (0, 1, 2)} | {"learner-0/0000000003"}
    alone.state.prune([3])
    assert {p.name for p in (tmp_path / "own").iterdir()} == {"learner-0", "learner-notes"}


@given(saved_by=st.integers(1, 9), learners=st.integers(1, 9))
def test_each_part_of_what_was_saved_goes_to_one_learner(saved_by, learners):
    unrolls = [(rank, number) for rank in range(saved_by) for number in range(20)]
    dealt = [
        (shard, number)
        for rank in range(learners)
        for shard, first, of in deal_out(saved_by, learners, rank)
        for number in range(first, 20, of)
    ]
    assert sorted(dealt) == unrolls


def test_another_number_of_learners_shares_what_was_saved_and_says_what_is_missing(tmp_path):
    old, new, checkpoint = tmp_path / "old", tmp_path / "new", tmp_path / "old/checkpoints/7"
    old.mkdir()

    def made(folder, rank, size):
        return Learner(folder, rank, size=size, kind=Dealing)

    digests = [made(old, rank, 3).state.save(7).digest for rank in range(3)]
    about = ABOUT._replace(own_states=tuple(digests))
    for rank, size, content in (
        (0, 2, [("learner-0", 0, 1), ("learner-2", 0, 1)]),
        (4, 6, [("learner-1", 1, 2)]),
    ):
        learner = made(old, rank, size)
        learner.state.restore(about)
        assert learner.kept == (content, [0, 0, 0])
        assert "from what 3 learners saved); its local variables are fresh" in learner.said[0]
    assert not made(new, 0, 2).state.restore_source(checkpoint, about)
    (old / "own" / "learner-2").rename(tmp_path / "elsewhere")
    why = made(new, 0, 2).state.restore_source(checkpoint, about)
    assert "learner-2/0000000007 does not exist on this host" in why
    learner = made(old, 0, 2)
    learner.state.restore(about)
    assert learner.kept[0] == [("learner-0", 0, 1)]
    assert "starts without a part of its source: " in learner.said[0]

    class Changed(Dealing):
        def restore_shares(self, shares):
            super().restore_shares(shares)
            raise ValueError("unrolls of another network")

    learner = Learner(old, 0, size=2, kind=Changed)
    learner.state.restore(about)  # an error would end one learner, for which the others wait
    assert learner.kept[0] == 0, "it is made anew"
    assert "unrolls of another network" in learner.said[0]
