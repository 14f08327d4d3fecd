"""Inference at the learner: chooses actions for actors that only step environments.

The path of a step: an actor's call carries a step of a group of environments. Calls that wait at
the same time become one batch: each group's step is written into its unroll (`UnrollWriter`), the
network reads the newest entries of all groups, with core states that stay on its device
(`StateTables`), and each call is answered with its group's actions. Complete unrolls enter the
queue from which the learner takes its batches; the call that completed them is answered once the
queue has room. `transport.server` registers `answer`.

In rounds (`transport.rounds`), a group that begins an unroll first waits for its turn: its call is
answered that it must be repeated, and the repeat that gets the turn is the one that infers.

The ledger (`transport.delivery`) decides which calls are new: a repeated call gets the answer
of the first one, and an actor that joins again begins with resets. The network here is a copy of
the learner's, whose variables are updated between two batches.
"""

import secrets
import threading
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from impala_mm.algorithms import contract
from impala_mm.algorithms.interface import Algorithm, EnvironmentNumber, defines
from impala_mm.data.compression import decompress
from impala_mm.data.step_codec import ArraysCodec, StepCodec
from impala_mm.data.trajectory import Entry
from impala_mm.data.unroll_check import choices_of, lacking_choice
from impala_mm.data.variables import ParameterLayout
from impala_mm.environments.types import Step
from impala_mm.inference.environment_group import EnvironmentGroup, StateTables, Turn
from impala_mm.transport.connected_actors import EnvironmentNumbers
from impala_mm.transport.delivery import DeliveryLedger
from impala_mm.transport.messages import (
    NO_POLICY,
    RUN_ENDED,
    MessageHeader,
    MessageReply,
    Reply,
)
from impala_mm.transport.rounds import Rounds

_MAX_CALLS = 256  # in one batch
_MAX_WAITING = 10_000  # batches in the queue of batches


class BatchedInference:
    """All groups of environments for which this learner chooses actions."""

    _ledger: DeliveryLedger
    _queue: tf.queue.QueueBase
    _numbers: EnvironmentNumbers
    _rounds: Rounds | None
    _select_valid: Callable[[int, list[bytes]], list[bytes]]

    def __init__(self, algorithm: Algorithm, layout: ParameterLayout, device: str = "/CPU:0"):
        """Act by `algorithm`, a copy of the learner's; `layout` describes its acting variables."""
        self._algorithm, self._layout, self._device = algorithm, layout, device
        self._spec = algorithm.unroll
        step = self._spec.step
        self._codec = StepCodec(step.observation, step.mask)
        self._choices = [choices_of(leaf) for leaf in tf.nest.flatten(step.observation)]
        self._answers = ArraysCodec(step.action)
        # The fields of an entry that the network reads, as lists of leaves.
        self._read = (step.observation, step.reward, step.action, step.first, step.mask)
        self._read_specs = tf.nest.flatten(self._read)
        self._num_actions = len(tf.nest.flatten(step.action))  # parts of an action
        self._lock = threading.Lock()  # guards the table of groups, and what calls change in groups
        self._groups: dict[tuple[int, int, int], EnvironmentGroup] = {}  # by header.stream_key
        self._published: tuple[int | None, Sequence[tf.Tensor]] = None, ()
        self._version: int | None = None  # policy version of this copy's variables
        initial = algorithm.initial_state(1)
        self._states = StateTables(initial, device)
        # Computed here, since computing it within a call could wait for the thread of that call.
        self._initial_state = [np.asarray(part) for part in tf.nest.flatten(initial)]
        # The group of each call in the current batch; None: the group is gone.
        self._batch: list[EnvironmentGroup | None] = []
        self._infer_graph = tf.function(self._infer, autograph=False).get_concrete_function(
            tf.TensorSpec([None, len(MessageHeader._fields)], tf.int64),
            tf.TensorSpec([None], tf.string),
        )
        self._name = f"inference-{secrets.token_hex(8)}"  # objects with one name share batches
        self._closed = False
        self.has_received = False  # whether a valid unroll was completed
        self.calls = self.batches = 0  # numbers since the start
        self._steps, self._counted = 0, (0, 0)  # steps so far; batches and steps at the last count

    def attach(
        self,
        ledger: DeliveryLedger,
        queue: tf.queue.QueueBase,
        numbers: EnvironmentNumbers,
        rounds: Rounds | None = None,
        select_valid: Callable[[int, list[bytes]], list[bytes]] = lambda actor, unrolls: unrolls,
    ) -> None:
        """Serve the learner process of this ledger; put valid unrolls into this queue.

        `select_valid` returns those of an actor's unrolls that are.
        """
        self._ledger, self._queue, self._numbers = ledger, queue, numbers
        self._rounds, self._select_valid = rounds, select_valid

    def close(self) -> None:
        """Refuse all further calls: the queue is closed."""
        self._closed = True

    def publish(self, version: int, values: Sequence[tf.Tensor]) -> None:
        """Act by these values of the acting variables, from the next batch on."""
        self._published = version, values

    def forget(self, actor: int) -> None:
        """Drop the groups and unfinished unrolls of an actor that has left or joins again."""
        with self._lock:
            for key in [key for key in self._groups if key[0] == actor]:
                self._ledger.forget(key)
                if self._rounds:
                    self._rounds.forget(key)
                rows = self._groups.pop(key).rows
                if rows is not None:
                    self._states.release(rows)

    def mean_batch(self) -> float:
        """Return the mean number of environments of an inference since the last call; 0: none."""
        (batches, steps), self._counted = self._counted, (self.batches, self._steps)
        return (self._steps - steps) / max(self.batches - batches, 1)

    # -- one call, in a graph

    def answer(
        self, header: tf.Tensor, contents: tf.Tensor, episodes: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Take a step of a group of environments; see `server.TakeMessage`.

        `contents`, string [1], is the step; the answer is the group's next actions as bytes.
        The call waits until the unrolls that the step ended are in the queue.
        """

        def act() -> tuple[tf.Tensor, tf.Tensor]:
            # A repeated call, which may come without content, has its turn now.
            step = tf.concat([contents, tf.constant([b""])], 0)[:1]
            actions = self._batched(header[None], step)[0]
            with tf.control_dependencies([actions]):
                unrolls, versions = tf.numpy_function(
                    self._take_unrolls, [header], [tf.string, tf.int64]
                )
            put = self._queue.enqueue_many(
                [tf.ensure_shape(unrolls, [None]), tf.ensure_shape(versions, [None])]
            )
            with tf.control_dependencies([put]):
                numbers = tf.numpy_function(self._complete, [header, actions, episodes], tf.int64)
            return tf.ensure_shape(numbers, length), actions

        length = [len(MessageReply._fields)]
        new, numbers, known = tf.numpy_function(
            self._try_accept, [header], [tf.bool, tf.int64, tf.string]
        )
        numbers, known = tf.ensure_shape(numbers, length), tf.ensure_shape(known, [])
        return tf.cond(tf.ensure_shape(new, []), act, lambda: (numbers, known))

    def _batched(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """Infer for these calls and all others that wait; return the answers to these."""
        answers = tf.raw_ops.BatchFunction(
            in_tensors=[headers, contents],
            captured_tensors=self._infer_graph.captured_inputs,
            f=self._infer_graph,
            num_batch_threads=1,
            max_batch_size=_MAX_CALLS,
            batch_timeout_micros=0,  # calls that wait while a batch is inferred are the next batch
            max_enqueued_batches=_MAX_WAITING,
            shared_name=self._name,
            Tout=[tf.string],
        )
        return tf.ensure_shape(answers[0], [None])

    def _try_accept(self, numbers: np.ndarray) -> tuple[np.bool_, np.ndarray, np.ndarray]:
        """Return whether to infer for a call; if not, the reply and a repeated call's answer."""
        if self._closed:
            raise RuntimeError(RUN_ENDED)  # the caller raises Unreachable
        header = MessageHeader.decode(numbers)
        with self._lock:
            reply, answer = self._ledger.try_accept(header)
            group = self._groups.get(header.stream_key)
            if reply == Reply.ACCEPTED:
                if group is None:
                    group = EnvironmentGroup(self._spec, header.environments, self._initial_state)
                    own = (header.actor, header.stream, header.environments)
                    group.numbers = self._numbers.of_group(*own)
                    self._groups[header.stream_key] = group
                group.start_inference()
            elif reply == Reply.RUNNING and group and self._gets_turn(header, group):
                reply = Reply.ACCEPTED
                group.start_inference()
            elif reply == Reply.RUNNING and group and group.inference_failed:
                reply = Reply.LOST
        return np.bool_(reply == Reply.ACCEPTED), self._reply(reply), np.array(answer, object)

    def _gets_turn(self, header: MessageHeader, group: EnvironmentGroup) -> bool:
        """Return whether a group that waits for its turn gets it now, to play an unroll."""
        if group.turn != Turn.WAITING or self._rounds is None:
            return False
        if self._rounds.claim(header.stream_key, group.size) is None:
            return False
        group.turn = Turn.GIVEN
        return True

    def _take_unrolls(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the unrolls that the group's step ended, and their policy versions."""
        header = MessageHeader.decode(numbers)
        with self._lock:
            group = self._groups.get(header.stream_key)
        try:
            contents, version = group.take_unrolls() if group else ([], 0)
            contents = self._select_valid(header.actor, contents)
        except BaseException:
            self.forget(header.actor)  # otherwise repeats of this call would wait for it for ever
            raise
        if self._rounds and contents:
            contents = self._rounds.take(header.stream_key, version, contents)
        self.has_received |= bool(contents)
        versions = np.full([len(contents)], version, np.int64)
        return np.array(contents, object), versions

    def _complete(self, numbers: np.ndarray, actions: bytes, episodes: np.ndarray) -> np.ndarray:
        """Return the reply to a call, now that its unrolls are in the queue."""
        header = MessageHeader.decode(numbers)
        if not actions and self._begin_waiting(header):
            return self._reply(Reply.RUNNING)
        if not actions:  # the content was no step, or the group is gone
            self._ledger.fail(header)
            return self._reply(Reply.LOST)
        acts = header._replace(version=self._version or 0)
        self._ledger.complete(acts, episodes, bytes(actions))
        return self._reply(Reply.ACCEPTED)

    def _begin_waiting(self, header: MessageHeader) -> bool:
        """Return whether a call ended because its group needs a turn, for which it now waits."""
        with self._lock:
            group = self._groups.get(header.stream_key)
            if group is None or group.turn != Turn.NEEDED:
                return False
            group.turn = Turn.WAITING
            return True

    def _reply(self, reply: Reply) -> np.ndarray:
        return np.array(MessageReply(reply, NO_POLICY if self._version is None else self._version))

    # -- one batch of calls, in a graph; never two at the same time

    def _infer(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """Return actions as bytes, string [N], for N calls with M environments in total."""
        specs = self._read_specs
        rows, starting, *flat = tf.numpy_function(
            self._write_steps, [headers, contents], [tf.int32, tf.int32, *[s.dtype for s in specs]]
        )
        rows, starting = tf.ensure_shape(rows, [None]), tf.ensure_shape(starting, [None])
        flat = [tf.ensure_shape(x, [None, *s.shape]) for x, s in zip(flat, specs, strict=True)]
        observation, reward, action, first, mask = tf.nest.pack_sequence_as(self._read, flat)
        with tf.control_dependencies([rows]), tf.device(self._device):
            starts = tf.nest.flatten(self._states.read(starting))
            state = self._states.read(rows)
            entries = Entry(action, reward, None, None, observation, first, None, mask)
            # Only an algorithm that explores by the numbers has them read for each batch.
            environment = (
                self._environment()
                if defines(self._algorithm.act_by_number)
                else EnvironmentNumber.outside_of_a_run(first)
            )
            actions, state, extras = contract.act(
                self._algorithm, entries, state, tf.ones_like(reward), environment
            )
            written = self._states.write(rows, state)
        with tf.control_dependencies(written):
            results = [*tf.nest.flatten(actions), *tf.nest.flatten(extras)]
            answers = tf.numpy_function(self._set_actions, [*results, *starts], tf.string)
        return tf.ensure_shape(answers, [None])

    def _environment(self) -> EnvironmentNumber:
        """Return the numbers of a batch's environments, in a graph."""

        def numbers() -> list[np.ndarray]:
            groups = [group.numbers for group in self._batch if group]
            joined = np.concatenate([np.zeros([0], np.int32), *groups])
            return [joined, np.array(self._numbers.count, np.int32)]

        with tf.device("/CPU:0"):
            number, count = tf.numpy_function(numbers, [], [tf.int32, tf.int32])
        return EnvironmentNumber(tf.ensure_shape(number, [None]), tf.ensure_shape(count, []))

    def _write_steps(self, headers: np.ndarray, contents: np.ndarray) -> list[np.ndarray]:
        """Write each call's step; return the arrays that the network reads.

        These are rows [M] of the state tables, those of groups whose unroll starts with this step
        [K], and the leaves of observation, reward, action, first and mask [M, ...].
        """
        version, values = self._published
        if version != self._version:
            self._layout.assign(values)
            self._version = version
        self._states.recycle()
        self._batch = [
            self._write_step(MessageHeader.decode(numbers), content)
            for numbers, content in zip(headers, contents, strict=True)
        ]
        self._states.grow()
        groups = [group for group in self._batch if group]
        parts = self._join([group.writer.newest for group in groups])
        self.calls, self.batches = self.calls + len(groups), self.batches + 1
        self._steps += len(parts[-1])
        starting = [group for group in groups if group.writer.at_unroll_start]
        return [_rows_of(groups), _rows_of(starting), *parts]

    def _write_step(self, header: MessageHeader, content: bytes) -> EnvironmentGroup | None:
        """Write a call's step into its group's unroll; return the group, if it acts on the step.

        None: the group is gone, or it must wait for its turn.
        """
        with self._lock:
            group = self._groups.get(header.stream_key)
            if group and group.turn == Turn.GIVEN:  # its step is already written
                group.begin_unroll(self._version or 0)
                return group
        step = self._decode_step(content, group.size) if group else None
        with self._lock:
            if group is None or step is None or self._groups.get(header.stream_key) is not group:
                return None
            if group.rows is None:
                group.rows = self._states.allocate(group.size)
        group.write(step, self._version or 0)
        if self._rounds and group.writer.at_unroll_start:
            group.need_turn()
            return None
        return group

    def _decode_step(self, content: bytes, environments: int) -> Step | None:
        """Return the step in a call's content.

        None if it has another size, NaN, infinity, or a choice that does not exist.
        """
        raw = decompress(content, self._codec.size * environments)
        if raw is None:
            return None
        step = self._codec.decode(raw, environments)
        numbers = tf.nest.flatten((step.reward, step.observation))
        is_finite = all(np.isfinite(x).all() for x in numbers if x.dtype.kind == "f")
        chosen = zip(tf.nest.flatten(step.observation), self._choices, strict=True)
        is_right = all(lacking_choice(x, c) is None for x, c in chosen if c is not None)
        return step if is_finite and is_right else None

    def _join(self, newest: list[Entry]) -> list[np.ndarray]:
        """Return the leaves of what the network reads of several groups' newest entries."""
        if not newest:
            return [np.zeros([0, *s.shape], s.dtype.as_numpy_dtype) for s in self._read_specs]
        read = [
            tf.nest.flatten((e.observation, e.reward, e.action, e.first, e.mask)) for e in newest
        ]
        return [np.concatenate(leaves) for leaves in zip(*read, strict=True)]

    def _set_actions(self, *flat: np.ndarray) -> np.ndarray:
        """Give each group of the batch its actions, extras and start state; return answers [N]."""
        split = len(flat) - len(self._states)
        chosen, starts = flat[:split], flat[split:]
        begin = first = 0
        answers = []
        for group in self._batch:
            if group is None:
                answers.append(b"")
                continue
            end = begin + group.size
            if group.writer.at_unroll_start:
                last = first + group.size
                group.writer.set_start_state([np.array(part[first:last]) for part in starts])
                first = last
            own = [np.array(part[begin:end]) for part in chosen]
            actions = tf.nest.pack_sequence_as(self._spec.step.action, own[: self._num_actions])
            group.set_actions(actions, own[self._num_actions :])
            answers.append(b"".join(self._answers.encode(actions)))
            begin = end
        return np.array(answers, object)


def _rows_of(groups: list[EnvironmentGroup]) -> np.ndarray:
    """Return the rows of all environments of these groups, int32 [K]."""
    rows = [group.rows for group in groups if group.rows is not None]
    return np.concatenate([np.zeros([0], np.int32), *rows])
