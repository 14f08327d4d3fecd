"""Inference at the learner, over real calls: repeats, actors that vanish, and the unrolls."""

import functools
import threading
import time

import numpy as np
import pytest
import remotely
import telling
import tensorflow as tf
from deadlines import within
from in_process import decoded, outputs
from supervising import until

from impala_mm.actor import stepping_actor
from impala_mm.actor.stepping_actor import SteppingActor, group_sizes, run
from impala_mm.algorithms import agent
from impala_mm.algorithms.interface import Role
from impala_mm.config.settings import Config
from impala_mm.data.compression import compress_lz4, leave_uncompressed
from impala_mm.data.episodes import to_rows
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import UnrollCodec
from impala_mm.data.unroll_check import UnrollCheck
from impala_mm.environments.action_parts import Discrete
from impala_mm.environments.actions import ActionSpec
from impala_mm.environments.make import make_environments
from impala_mm.environments.types import Step
from impala_mm.inference import environment_group
from impala_mm.inference.batched_inference import BatchedInference
from impala_mm.runtime.heartbeat import Heartbeat
from impala_mm.transport.client import Client, Delivery, Refused, StreamLost, Unreachable
from impala_mm.transport.messages import Reply

NO_EPISODES = to_rows([])


class Hand:
    """An actor that a test controls: one group, whose observations are its steps' numbers."""

    def __init__(self, there, actor=0, incarnation=1, environments=2):
        self.client = Client(there.address, remotely.TOKEN, timeout=5)
        self.client.hello(there.me(actor) | {"incarnation": incarnation, "host": "h"})
        self._codec = StepCodec(there.algorithm.unroll.step.observation)
        first = self.client.header(actor, incarnation, stream=0)
        self.header = first._replace(environments=environments)

    def step(self, number, value=None):
        """Return step `number` as bytes, in which all environments show `value`."""
        e = self.header.environments
        no = np.zeros([e], bool)
        seen = np.full([e, 3], number if value is None else value, np.float32)
        step = Step(np.zeros([e]), no, no, seen, np.full([e], number == 0), no)
        return leave_uncompressed(self._codec.encode(step))

    def ask(self, number, value=None, content=None, **changes):
        """Send that step."""
        header = self.header._replace(number=number, **changes)
        content = self.step(number, value) if content is None else content
        return Asked(self.client, header, [content], NO_EPISODES)

    def act(self, *numbers, **how):
        """Send these steps, wait for each, and return the last one's actions."""
        return [self.ask(number, **how).wait_for_actions() for number in numbers][-1]


class Asked(Delivery):
    """A step of a `Hand` on its way."""

    def wait_for_actions(self):
        """Wait for one call and return its actions."""
        reply = self.wait()
        assert reply in {Reply.ACCEPTED, Reply.STALE}, reply
        return np.frombuffer(self.answer, np.int32)


@pytest.fixture
def there():
    with remotely.remote(remotely.Random("telling:Telling-v0", length=3)) as made:
        yield made


def test_a_call_that_is_repeated_gets_its_first_answer_and_counts_once(there):
    hand = Hand(there, environments=64)
    answers = [hand.ask(number).wait_for_actions() for number in range(3)]
    # The content of a repeat is ignored: the first one is learnt from.
    again = [hand.ask(2, value=99).wait_for_actions() for _ in range(5)]
    for answer in again:
        np.testing.assert_array_equal(answer, answers[2])
    assert not np.array_equal(answers[1], answers[2]), "64 coins fell alike"
    hand.act(3)
    entries, _, _ = there.taken(64)
    np.testing.assert_array_equal(entries.observation[:, 7, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(entries.action[1:, 7], [answer[7] for answer in answers])
    assert there.inference.calls == 4


def test_a_call_that_is_repeated_while_it_waits_for_room_waits_with_it():
    with remotely.remote(remotely.Random("telling:Telling-v0", 1), capacity=2) as there:
        hand, other = Hand(there), Hand(there, actor=1)
        for number in range(2):  # their two unrolls fill the queue
            hand.ask(number).wait_for_actions()
        waits = [hand.ask(2), hand.ask(2)]
        answers, replies = [], []

        def patiently(call):
            while (reply := call.wait()) == Reply.RUNNING:
                time.sleep(0.02)
            replies.append(reply)
            answers.append(call.answer)

        threads = [threading.Thread(target=patiently, args=[call]) for call in waits]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        assert not answers
        other.act(0)  # a step that ends no unroll does not wait
        there.taken(2)
        for thread in threads:
            thread.join(60)
        assert answers[0] == answers[1] != b""
        assert sorted(replies) == [Reply.ACCEPTED, Reply.STALE]
        assert int(there.server.queue.size()) == 2


def test_who_is_not_known_is_told_so_and_holds_up_nobody(there):
    hand = Hand(there)
    hand.act(0)
    with pytest.raises(StreamLost):
        hand.act(2)  # a step is missing
    for foreign in ({"nonce": hand.header.nonce + 1}, {"run": hand.header.run + 1}):
        assert hand.ask(1, **foreign).wait() == Reply.FOREIGN
    assert there.server.ledger.stale == 2
    with pytest.raises(Refused, match="another process is this actor"):
        hand.ask(1, incarnation=2).wait_for_actions()
    stranger = Hand(there, actor=1)
    stranger.client._token = tf.constant("guessed")
    with pytest.raises(Refused, match="token"):
        stranger.act(0)
    hand.act(1)
    there.server.forget_silent(-1)  # the learner forgets the actor
    with pytest.raises(StreamLost):
        hand.act(2)


BAD = [{"content": b"short"}, {"content": b""}, {"content": compress_lz4(bytes(10**7))}]


def test_a_step_of_the_wrong_size_or_without_numbers_is_refused_alone(there):
    other = Hand(there, actor=1)
    for number, bad in enumerate([*BAD, {"content": bytes(10**4)}, {"value": np.nan}]):
        hand = Hand(there, incarnation=1 + number)
        hand.act(0)
        with pytest.raises(StreamLost):
            hand.ask(1, **bad).wait_for_actions()
        other.act(number)


def test_a_step_with_a_choice_that_does_not_exist_is_refused():
    config = Config(level_name="Taxi-v4")  # observes one of 500 numbers, which is embedded
    made = agent.make_agent(config, None, role=Role.INFERENCE)
    inference = BatchedInference(made.algorithm, made.layout)
    step = make_environments("Taxi-v4", 2, seed=0).reset()
    for value, fits in ((499, True), (-1, False), (500, False)):
        step.observation[1] = value
        content = leave_uncompressed(inference._codec.encode(step))
        assert (inference._decode_step(content, 2) is not None) == fits


def test_unrolls_with_actions_that_do_not_exist_do_not_reach_the_learner():
    algorithm, act = remotely.Random("telling:Telling-v0", 1), remotely.Random.act

    def act_outside(entry, core_state, exploration):
        actions, *rest = act(algorithm, entry, core_state, exploration)
        return actions + tf.where(entry.observation[:, 0] < 2, 7, 0), *rest

    algorithm.act = act_outside
    check = UnrollCheck(algorithm.unroll, ActionSpec(Discrete(3)))
    with remotely.remote(algorithm, find_mistake=check.mistake) as there:
        hand = Hand(there)
        for number in range(3):  # steps 1 and 2 end the unrolls with the actions of 0 and 1
            hand.ask(number).wait_for_actions()
        assert not there.server.has_received
        assert int(there.server.queue.size()) == 0
        assert there.server.dropped == 4
        assert "there are 3 choices" in there.server.mistakes[0]
        hand.act(3, 4)  # the first one still begins with the last wrong action
        entries, _, _ = there.taken(2)
        np.testing.assert_array_equal(entries.observation[:, 0, 0], [3, 4])


def test_who_was_in_an_inference_that_failed_is_told_so_and_begins_anew(there, monkeypatch):
    hand = Hand(there)
    hand.act(0)
    codec = there.inference._codec
    decode = codec.decode

    def fails(content, environments):
        raise MemoryError("the GPU is full")

    monkeypatch.setattr(codec, "decode", fails)
    with pytest.raises(Unreachable, match="the GPU is full"):
        hand.act(1)
    monkeypatch.setattr(codec, "decode", decode)
    monkeypatch.setattr(environment_group, "_INFERENCE_SECONDS", 0.0)
    with pytest.raises(StreamLost):
        hand.act(1)
    anew = Hand(there, incarnation=2)
    anew.act(*range(4))
    there.taken(2)


def test_an_actor_whose_learner_became_another_process_starts_over(there):
    there.act("telling:Telling-v0", [2])
    there.taken(2)
    there.server.ledger.nonce += 1  # what a restart would have made
    there.server._identity["nonce"] += 1
    while there.server.dropped < 2:  # it reports the unrolls that it had begun
        there.taken(2)
    assert there.server.ledger.stale == 1
    there.taken(2)


def test_before_there_is_a_policy_an_actor_is_taken_by_nobody():
    algorithm = remotely.Random("telling:Telling-v0", length=1)
    with remotely.remote(algorithm, published=False) as there:
        with pytest.raises(Unreachable, match="there is no policy yet"):
            Hand(there)
        actor = there.act("telling:Telling-v0", [1])
        time.sleep(0.5)
        assert not there.inference.calls
        there.server.publish(7, lambda: b"", [])
        assert set(there.taken(3)[2]) == {7}
        assert actor.failure is None


def test_states_of_any_type_are_the_same_after_a_table():
    parts = [
        tf.constant([[1.5, -0.0], [np.inf, 1e-40]]),
        tf.constant(np.random.default_rng(0).integers(256, size=[3, 5, 4]), tf.uint8),
        tf.constant([[1, 2, 3], [4, 5, 6]], tf.uint8),
        tf.constant([2**31 - 1, -1, 0x7F800001]),  # as a float32, the last is a NaN that signals
        tf.constant([2**62, -1], tf.int64),
        tf.constant([[True], [False]]),
    ]
    for part in parts:
        kept = environment_group._as_stored(part)
        table = tf.Variable(tf.zeros_like(kept), shape=[None, *kept.shape[1:]])
        rows = tf.range(part.shape[0])[::-1]
        table.scatter_update(tf.IndexedSlices(kept, rows))
        back = environment_group._from_stored(tf.gather(table, rows), part)
        assert back.dtype == part.dtype
        np.testing.assert_array_equal(back, part)
    assert environment_group._as_stored(parts[1]).dtype == tf.float32


def test_who_begins_anew_has_no_part_in_what_was_begun_before(there):
    """The second unroll of the second incarnation is half done when the third comes."""
    Hand(there).act(0)
    before = Hand(there, incarnation=2)
    before.act(*range(5))
    after = Hand(there, incarnation=3)
    for number in range(4):
        after.ask(number, value=100 + number).wait_for_actions()
    with pytest.raises(Refused, match="another process is this actor"):
        before.act(5)
    entries, _, _ = there.taken(4)
    np.testing.assert_array_equal(entries.observation[:, 0, 0], [0, 1, 2, 3])
    np.testing.assert_array_equal(entries.observation[:, 2, 0], [100, 101, 102, 103])
    assert there.inference._states.rows == 2, "rows that are free are used again"


def test_environments_of_several_actors_and_groups_do_not_mix(there):
    """Two of the actors compress their steps."""
    for actor, pack in enumerate((leave_uncompressed, compress_lz4, compress_lz4)):
        there.act("telling:Telling-v0", [3, 2, 1], actor, seed=100 * actor, pack=pack)
    witness = telling.Witness()
    for _ in range(30):
        entries, _, _ = there.taken(18)
        witness.sees(entries.observation.numpy(), entries.first.numpy())
    assert len(witness.lives) == 18
    assert there.inference.batches < there.inference.calls, "no two calls were inferred together"
    (use,) = there.server.actors.use_by_host().values()
    assert use.memory > 100, "the actors' messages say what their processes use"


@pytest.mark.parametrize(
    ("level_name", "agent_name"),
    [
        ("PongNoFrameskip-v4", "ShallowConvLSTMAgent"),
        pytest.param("memory", "MLPGTrXLAgent", marks=pytest.mark.slow),
        pytest.param("acting:Doors-v0", "MLPAgent", marks=pytest.mark.slow),  # with masks
    ],
)
def test_the_learner_reads_an_unroll_as_it_was_acted_on(level_name, agent_name):
    """From the start state, an update computes the recorded logits: states and frames agree."""
    algorithm, variables = remotely.network(level_name, agent_name, unroll_length=7)
    with remotely.remote(algorithm, variables=variables) as there:
        there.act(level_name, [2, 1])
        for _ in range(4):
            contents, versions = there.server.queue.dequeue_many(3)
            batch = decoded(UnrollCodec(algorithm.unroll), contents)
            recorded = batch.unrolls.extras.numpy()[1:]
            assert recorded.std() > 0
            np.testing.assert_allclose(
                outputs(algorithm, batch).logits[:-1], recorded, rtol=1e-4, atol=1e-5
            )
            assert versions.numpy().tolist() == [0, 0, 0]
            if level_name == "acting:Doors-v0":
                entries = batch.unrolls
                chosen = tf.gather(entries.mask[:-1], entries.action[1:], batch_dims=2)
                assert np.all(chosen | entries.first[1:])
                assert not np.all(entries.mask)


def test_new_parameters_act_from_the_next_batch_on_and_unrolls_name_the_oldest():
    algorithm, variables = remotely.network("catch", "MLPAgent", unroll_length=2)
    with remotely.remote(algorithm, variables=variables) as there:
        there.act("catch", [1])
        first = there.taken(1)[2]
        there.server.publish(5, lambda: b"", [tf.zeros(v.shape) for v in variables])
        versions = [first[0]]
        while versions[-1] < 5:
            entries, _, version = there.taken(1)
            versions += version.tolist()
        assert sorted(versions) == versions
        assert set(versions) == {0, 5}
        np.testing.assert_array_equal(entries.extras[1:], np.zeros([2, 1, 3]))  # even: all is zero


def _close_round(rounds):
    """Return the number of unrolls of a round, once it is over."""
    return until(lambda: rounds.close(0.1), 60)


def _calls_stay(inference):
    """Return whether no call comes for a while."""
    calls = inference.calls
    time.sleep(0.3)
    return inference.calls == calls


def test_in_rounds_every_unroll_is_played_by_the_newest_policy_alone_and_nobody_plays_meanwhile():
    """Two groups play rounds of 6 unrolls: each environment plays two of them."""
    algorithm, variables = remotely.network("catch", "MLPLSTMAgent", unroll_length=4)
    with remotely.remote(algorithm, variables=variables, columns=6) as there:
        there.act("catch", [2, 1])
        ends = None
        for version in range(4):
            assert _close_round(there.server.rounds) == 6
            entries, _, versions = there.taken(6)
            assert versions.tolist() == [version] * 6
            if version:  # even since the first update, also on the entry with which it begins
                np.testing.assert_array_equal(entries.extras[1:], np.zeros([4, 6, 3]))
            starts = {row.tobytes() for row in entries.observation[0].numpy()}
            assert ends is None or starts & ends, "games go on where they stood"
            ends = {row.tobytes() for row in entries.observation[-1].numpy()}
            there.server.begin_update()
            until(lambda: _calls_stay(there.inference), 20)  # all wait for the next policy
            assert int(there.server.queue.size()) == 0
            there.server.publish(version + 1, lambda: b"", [tf.zeros(v.shape) for v in variables])
        assert (there.server.rounds.padded, there.server.rounds.dropped) == (0, 0)


def test_a_call_that_waits_for_its_turn_is_repeated_and_counts_once():
    with remotely.remote(remotely.Random("telling:Telling-v0", 2), columns=2) as there:
        hand = Hand(there)
        rounds = there.server.rounds
        assert hand.ask(0).wait() == Reply.RUNNING, "no round is open"
        assert hand.ask(0).wait() == Reply.RUNNING
        assert rounds.close(0.0) is None
        hand.act(0)
        hand.act(1)
        for _ in range(3):
            assert hand.ask(2, value=99).wait() == Reply.RUNNING
        assert rounds.close(1.0) == 2
        entries, _, _ = there.taken(2)
        assert entries.observation[:, 0, 0].numpy().tolist() == [0, 1, 99]
        there.server.begin_update()
        assert hand.ask(2).wait() == Reply.RUNNING
        there.server.publish(1, lambda: b"", [])
        assert rounds.close(0.0) is None
        first = hand.act(2)
        np.testing.assert_array_equal(hand.act(2), first)
        assert there.inference.calls == 3


def test_an_actor_whose_reset_takes_minutes_keeps_its_episodes(there):
    hand = Hand(there)
    hand.act(0)
    time.sleep(0.5)
    assert there.server.forget_silent(0.4) == [], "it has ten times as long"
    hand.act(1)
    time.sleep(0.5)
    assert there.server.forget_silent(0.01) == [0]
    with pytest.raises(StreamLost):
        hand.ask(2).wait()


def test_a_running_step_is_waited_for_but_one_that_does_not_end_only_so_long(there, monkeypatch):
    """Environments are closed next."""
    stop, ends = threading.Event(), threading.Event()
    for seconds, ended in ((20.0, True), (0.2, False)):
        monkeypatch.setattr(stepping_actor, "_LAST_STEP_SECONDS", seconds)
        actor = SteppingActor(there.address, {}, remotely.TOKEN, [], print, stop, Heartbeat())
        actor.waits, actor.run = False, functools.partial(ends.wait, 0.5 if ended else None)
        stop.set()
        with within(5.0):
            run(actor, stop, Heartbeat())
        assert actor.is_alive() != ended
    with pytest.raises(stepping_actor._Ended):
        actor.refuse_after_end()
    assert not actor.waits, "no further step begins"
    ends.set()
    actor.join(20)


def test_groups_are_two_or_as_many_as_messages_allow():
    small, large, huge = (
        tf.TensorSpec(shape, tf.uint8) for shape in ([84, 84, 1], [210, 160, 3], [2000, 2000, 1])
    )
    assert group_sizes(1, small) == [1]
    assert group_sizes(33, small) == [17, 16]
    assert group_sizes(100, large) == [25] * 4, "31 of 100,808 bytes fit into a message"
    with pytest.raises(ValueError, match=r"4\.0 MB is too large"):
        group_sizes(2, huge)
