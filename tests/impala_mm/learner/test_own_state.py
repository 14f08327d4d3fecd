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
    """A source whose content is one number."""

    content, older = 0, 0

    def make_older(self, updates):
        self.older += updates

    def save(self, folder):
        np.save(folder / "content.npy", self.content)

    def restore(self, folder):
        self.content = -1
        self.content = int(np.load(folder / "content.npy"))


class Learner:
    """A learner's source, local variables and own state."""

    def __init__(self, folder, rank=1, shape=(3,), size=2):
        self.own_source = OwnSource(lambda fresh: Counting(), None, UNROLL, "/CPU:0")
        self.variable, self.said = tf.Variable(tf.zeros(shape)), []
        self.state = OwnState(
            *(folder, rank, size, self.own_source, [self.variable], self.said.append)
        )

    @property
    def content(self):
        return self.own_source._source.content

    def fill(self, number):
        self.own_source._source.content = number
        self.variable.assign(tf.fill(self.variable.shape, float(number)))


def _saved(folder, number=5, update=7):
    learner = Learner(folder)
    learner.fill(number)
    saved = learner.state.save(update)
    assert not saved.why_not
    return learner, ABOUT._replace(own_states=("", saved.digest), updates=update)


def test_source_and_local_variables_come_back(tmp_path):
    _, about = _saved(tmp_path)
    again = Learner(tmp_path)
    again.state.restore(about)
    assert again.content == 5
    assert again.variable.numpy().tolist() == [5, 5, 5]
    assert again.said[0].startswith("restored its source and its local variables (")


def test_a_new_run_begins_with_the_source_of_another_one_and_variables_of_its_own(tmp_path):
    (tmp_path / "old").mkdir()
    _, about = _saved(tmp_path / "old")
    again = Learner(tmp_path / "new")
    checkpoint = tmp_path / "old" / "checkpoints" / "0000000007"
    assert not again.state.restore_source(checkpoint, about)
    assert again.content == 5
    assert again.own_source._source.older == 7, "its versions are from before this run's updates"
    assert again.variable.numpy().tolist() == [0, 0, 0]
    assert again.said[0].startswith("restored its source (")
    assert not (tmp_path / "new").exists()


def _path(folder):
    return folder / "own" / "learner-1" / "0000000007"


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (
            lambda path: path.rename(path.with_name("x")),
            r"learner 1: .*0007 does not exist on this",
        ),
        (lambda path: _cut(path / "source/content.npy"), r"learner 1: .*content.npy is cut short"),
    ],
)
def test_a_replay_that_was_asked_for_and_cannot_be_reloaded_ends_all_learners(tmp_path, harm, why):
    digests = []
    for rank in range(2):
        (tmp_path / "old").mkdir(exist_ok=True)
        learner = Learner(tmp_path / "old", rank)
        learner.fill(5)
        digests.append(learner.state.save(7).digest)
    harm(_path(tmp_path / "old"))
    about = ABOUT._replace(own_states=tuple(digests))

    def start(group):
        state = Learner(tmp_path / "new", group.rank).state
        reload_source(state, tmp_path / "old" / "checkpoints" / "0000000007", about, group)

    found = in_threads.together(2, start)
    assert [type(each) for each in found] == [Mismatch, Mismatch]
    assert str(found[0]) == str(found[1])
    assert re.search(rf"--reload_replay: {why}.*: leave it out, or give the newest", str(found[0]))


def test_a_state_of_local_variables_alone_is_no_replay(tmp_path):
    variables = [tf.Variable(1.0)]
    (tmp_path / "old").mkdir()
    digest = OwnState(tmp_path / "old", 0, 1, None, variables, print).save(7).digest
    about, checkpoint = ABOUT._replace(own_states=(digest,)), tmp_path / "old" / "checkpoints" / "7"
    own, state, _ = _dealing(tmp_path / "new", 0, 1)
    assert "contains no source" in state.restore_source(checkpoint, about)
    assert own._source.content == 0
    with pytest.raises(Mismatch, match="learner 0: it has no replay that is saved"):
        reload_source(None, checkpoint, about, SingleLearner())


@pytest.mark.parametrize(
    ("harm", "about", "said"),
    [
        (lambda path: path.rename(path.with_name("x")), {}, r"0000000007 does not exist on this"),
        (lambda path: _cut(path / "source/content.npy"), {}, r"content.npy is cut short since it"),
        (lambda path: (path / "about.json").unlink(), {}, r"has no about.json that can be read"),
        (lambda path: None, {"own_states": ()}, r"the checkpoint was saved without any"),
        (lambda path: None, {"own_states": ("a",)}, r"the checkpoint was saved by 1 learner"),
        (lambda path: None, {"own_states": ("a", "")}, r"it could not be saved with the checkp"),
        (lambda path: None, {"own_states": ("a", "b")}, r"belongs to another checkpoint of upd"),
    ],
)
def test_what_cannot_be_restored_is_said_and_the_learner_starts_without_it(
    tmp_path, harm, about, said
):
    _, saved = _saved(tmp_path)
    harm(_path(tmp_path))
    again = Learner(tmp_path)
    again.state.restore(saved._replace(**about))
    assert (again.content, again.variable.numpy().tolist()) == (0, [0, 0, 0])
    assert len(again.said) == 1
    assert again.said[0].startswith("starts with an empty source and fresh local variables: ")
    assert said in again.said[0]


def test_contents_that_no_longer_fit_leave_the_source_and_the_variables_as_they_are_made(tmp_path):
    _, about = _saved(tmp_path)
    other = Learner(tmp_path, shape=(4,))
    other.state.restore(about)
    assert "has shape [4], but" in other.said[0]
    assert (other.content, other.variable.numpy().tolist()) == (0, [0] * 4)

    class Refusing(Counting):
        def restore(self, folder):
            self.content = -1
            raise KeyError("capacity")

    again = Learner(tmp_path)
    again.own_source._source = Refusing()
    again.state.restore(about)
    assert "raised KeyError: 'capacity'" in again.said[0]
    assert (again.content, again.variable.numpy().tolist()) == (0, [0] * 3)


def test_only_the_states_of_kept_checkpoints_stay(tmp_path):
    learner, _ = _saved(tmp_path, update=1)
    for update in (2, 3, 4):
        learner.state.save(update)
    learner.state.prune([3, 4])
    assert sorted(p.name for p in (tmp_path / "own/learner-1").iterdir()) == [
        "0000000003",
        "0000000004",
    ]


def test_a_save_that_fails_leaves_the_earlier_state_and_says_why(tmp_path, capsys):
    learner, about = _saved(tmp_path)

    def fail(folder):
        (folder / "half").write_text("half")
        raise ValueError("no longer finite")

    learner.own_source._source.save = fail
    saved = learner.state.save(8)
    assert saved == ("", "ValueError: no longer finite")
    assert "Traceback" in capsys.readouterr().err
    learner.own_source._source.save = lambda folder: (_ for _ in ()).throw(OSError(28, "No space"))
    assert "No space" in learner.state.save(8).why_not
    assert [p.name for p in (tmp_path / "own/learner-1").iterdir()] == ["0000000007"]
    again = Learner(tmp_path)
    again.state.restore(about)
    assert again.content == 5
    learner.state._bytes = 10**18
    assert "MB free, and the last save took" in learner.state.save(8).why_not


def test_a_learner_without_anything_of_its_own_writes_nothing(tmp_path):
    source = OwnSource(lambda fresh: Returning(), None, UNROLL, "/CPU:0")
    assert not OwnState(tmp_path, 0, 1, source, [], print)
    assert not OwnState(tmp_path, 0, 1, None, (), print)
    assert OwnState(tmp_path, 0, 1, None, [tf.Variable(0)], print)


def test_the_states_of_learners_that_the_run_has_no_more_go_with_their_checkpoints(tmp_path):
    """A run of three learners continues with one; its older checkpoints may still be resumed."""
    for rank in (0, 1, 2):
        learner = Learner(tmp_path, rank, size=3)
        for update in (1, 2):
            learner.state.save(update)
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


class Dealing(Counting):
    """A source that may be dealt out; its content is then the list of shares."""

    def restore_shares(self, shares):
        self.content = [(share.folder.parts[-3], share.first, share.of) for share in shares]


def _dealing(folder, rank, size, kind=Dealing):
    said = []
    own = OwnSource(lambda fresh: kind(), None, UNROLL, "/CPU:0")
    return own, OwnState(folder, rank, size, own, [], said.append), said


def test_another_number_of_learners_shares_what_was_saved_and_says_what_is_missing(tmp_path):
    digests = [_dealing(tmp_path, rank, 3)[1].save(7).digest for rank in range(3)]
    about = ABOUT._replace(own_states=tuple(digests))
    own, state, said = _dealing(tmp_path, 0, 2)
    state.restore(about)
    assert own._source.content == [("learner-0", 0, 1), ("learner-2", 0, 1)]
    assert said == ["restored its source (from what 3 learners saved)"]
    checkpoint = tmp_path / "checkpoints" / "0000000007"
    assert not _dealing(tmp_path / "new", 0, 2)[1].restore_source(checkpoint, about)
    (tmp_path / "own" / "learner-2").rename(tmp_path / "elsewhere")
    why = _dealing(tmp_path / "new", 0, 2)[1].restore_source(checkpoint, about)
    assert "learner-2/0000000007 does not exist on this host" in why
    own, state, said = _dealing(tmp_path, 0, 2)
    state.restore(about)
    assert own._source.content == [("learner-0", 0, 1)]
    assert "starts without a part of its source: " in said[0]
    assert "learner-2/0000000007 does not exist on this host" in said[0]
    variable = tf.Variable(5.0)
    state = OwnState(tmp_path, 0, 2, own, [variable], said.append)
    state.restore(about)
    assert said[-1].endswith("; its local variables are fresh")
    own, state, said = _dealing(tmp_path, 4, 6)
    state.restore(about)
    assert own._source.content == [("learner-1", 1, 2)]


def test_shares_of_another_layout_leave_each_learner_with_an_empty_source(tmp_path):
    """An error would end one learner, for which the others wait."""
    digests = [_dealing(tmp_path, rank, 3)[1].save(7).digest for rank in range(3)]

    class Changed(Dealing):
        def restore_shares(self, shares):
            super().restore_shares(shares)
            raise ValueError("unrolls of another network")

    own, state, said = _dealing(tmp_path, 0, 2, Changed)
    state.restore(ABOUT._replace(own_states=tuple(digests)))
    assert own._source.content == 0, "it is made anew"
    assert said == [
        "starts with an empty source: restoring what 3 learners saved raised ValueError: unrolls "
        "of another network"
    ]
