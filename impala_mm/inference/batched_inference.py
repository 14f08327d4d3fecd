"""Inference at the learner: chooses actions for actors that only step environments.

The path of a step: an actor's call brings what a step of a group of environments brought. Calls
that wait at the same time become one batch: each group's step is written into its unroll
(`UnrollWriter`), the network reads all newest entries, from core states that stay on its device
(`StateTables`), and each call is answered with its group's actions. Unrolls that end go into the
queue that actors otherwise fill themselves; their call is answered once there was room.
`transport.endpoints` registers `answer`.

A group is the learner's for one incarnation of its actor: what a call repeats gets its first answer
again, and an actor that comes back begins with a reset. The acting variables are copies, renewed
between two batches.
"""

import secrets
import threading
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.compression import decompress
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import Entry
from impala_mm.inference.environment_group import EnvironmentGroup
from impala_mm.inference.state_tables import StateTables
from impala_mm.transport.messages import NO_POLICY, TRY_BITS, InferenceRequest, Reply

_MAX_CALLS = 256  # in one batch
_MAX_WAITING = 10_000  # batches of calls that may wait


class BatchedInference:
    """All groups of environments that this learner acts for."""

    def __init__(self, algorithm: Algorithm, layout: ParameterLayout, device: str = "/CPU:0"):
        """`algorithm`: a copy of the learner's, for acting alone; `layout`: of its variables."""
        self._algorithm, self._layout, self._device = algorithm, layout, device
        self._spec = algorithm.unroll
        self._codec = StepCodec(self._spec.step.observation)
        self._lock = threading.Lock()  # of the groups' table, and of what a group's calls change
        self._groups: dict[tuple[int, int, int], EnvironmentGroup] = {}
        self._published: tuple[int | None, Sequence[tf.Tensor]] = None, ()
        self._version: int | None = None  # of the variables that act
        self._unused_rows: list[np.ndarray] = []  # of groups that are gone
        initial = algorithm.initial_state(1)
        self._states = StateTables(initial, device)
        # Whoever computed this in a call might wait there for the thread that the call is in.
        self._initial_state = [np.asarray(part) for part in tf.nest.flatten(initial)]
        # The groups whose calls are being answered; None: the group is gone.
        self._batch: list[EnvironmentGroup | None] = []
        self._infer_graph = tf.function(self._infer, autograph=False).get_concrete_function(
            tf.TensorSpec([None, len(InferenceRequest._fields)], tf.int64),
            tf.TensorSpec([None], tf.string),
        )
        self._name = f"inference-{secrets.token_hex(8)}"  # else two of a process would share it
        self._incarnations: dict[int, int] = {}  # of each actor
        self._nonce: int | None = None  # of the learner's process
        self._closed = False
        self._heard_from: Callable[[int], None] = lambda actor: None
        self._answered: Callable[[InferenceRequest, np.ndarray], None] = lambda request, ended: None
        self.calls = self.batches = 0  # so far
        self._steps, self._counted = 0, (0, 0)  # steps so far; batches and steps at the last count

    def attach(
        self,
        nonce: int,
        heard_from: Callable[[int], None],
        answered: Callable[[InferenceRequest, np.ndarray], None],
    ) -> None:
        """Serve the learner's process of this nonce. `heard_from` is told of each call's actor,
        `answered` of each call that was answered, and what episodes it said had ended.
        """
        self._nonce, self._heard_from, self._answered = nonce, heard_from, answered

    def close(self) -> None:
        """Answer nobody from now on: unrolls have nowhere to go."""
        self._closed = True

    def publish(self, version: int, values: Sequence[tf.Tensor]) -> None:
        """Act by these values of the acting variables, from the next batch on."""
        self._published = version, values

    def join(self, actor: int, incarnation: int) -> None:
        """Make this incarnation the actor; what others had begun is dropped.

        An earlier connection of the same life, whose hello was heard late, changes nothing.
        """
        with self._lock:
            known = self._incarnations.get(actor, 0)
            if known >> TRY_BITS == incarnation >> TRY_BITS and known > incarnation:
                return
            self._incarnations[actor] = incarnation
        self.forget(actor)

    def forget(self, actor: int) -> None:
        """Drop what an actor had begun: it has left, or begins anew."""
        with self._lock:
            for key in [key for key in self._groups if key[0] == actor]:
                rows = self._groups.pop(key).rows
                if rows is not None:  # they may be in the batch that runs: the next releases them
                    self._unused_rows.append(rows)

    def mean_batch(self) -> float:
        """Return how many environments one inference was for since the last call; 0: none."""
        (batches, steps), self._counted = self._counted, (self.batches, self._steps)
        return (self._steps - steps) / max(self.batches - batches, 1)

    # -- one call, in a graph

    def answer(
        self,
        header: tf.Tensor,
        content: tf.Tensor,
        episodes: tf.Tensor,
        queue: tf.queue.QueueBase,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return (int64 [2]: a Reply and the version that acts; actions, int32 as bytes).

        `header`: InferenceRequest as int64; `content`: a step as bytes, which a call that is
        repeated may leave out. Unrolls go into `queue`, and are waited for until they are there.
        """

        def act() -> tuple[tf.Tensor, tf.Tensor]:
            actions = self._batched(header[None], content[None])[0]
            with tf.control_dependencies([actions]):
                contents, versions = tf.numpy_function(
                    self._take_unrolls, [header], [tf.string, tf.int64]
                )
            put = queue.enqueue_many(
                [tf.ensure_shape(contents, [None]), tf.ensure_shape(versions, [None])]
            )
            with tf.control_dependencies([put]):
                numbers = tf.numpy_function(self._complete, [header, actions, episodes], tf.int64)
            return tf.ensure_shape(numbers, [2]), actions

        new, numbers, known = tf.numpy_function(
            self._try_accept, [header], [tf.bool, tf.int64, tf.string]
        )
        numbers, known = tf.ensure_shape(numbers, [2]), tf.ensure_shape(known, [])
        return tf.cond(tf.ensure_shape(new, []), act, lambda: (numbers, known))

    def _batched(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """Infer for these calls and all that wait at the same time; return the answers of these."""
        answers = tf.raw_ops.BatchFunction(
            in_tensors=[headers, contents],
            captured_tensors=self._infer_graph.captured_inputs,
            f=self._infer_graph,
            num_batch_threads=1,
            max_batch_size=_MAX_CALLS,
            batch_timeout_micros=0,  # what waits while a batch is inferred is the next one
            max_enqueued_batches=_MAX_WAITING,
            shared_name=self._name,
            Tout=[tf.string],
        )
        return tf.ensure_shape(answers[0], [None])

    def _try_accept(self, numbers: np.ndarray) -> tuple[np.bool_, np.ndarray, np.ndarray]:
        """Return whether a call is to be inferred; if not, a Reply with the version that acts, and
        the answer that a repeated call had.
        """
        if self._closed:
            raise RuntimeError("the run has ended")  # for the caller, as if nobody were here
        request = InferenceRequest(*map(int, numbers))
        reply, answer = self._classify(request)
        if reply not in {Reply.FOREIGN, Reply.DISPLACED}:
            self._heard_from(request.actor)
        return np.bool_(reply is None), self._numbers(reply or 0), np.array(answer, object)

    def _classify(self, request: InferenceRequest) -> tuple[Reply | None, bytes]:
        """Return (None, nothing) where a call is to be inferred; else a Reply and its answer."""
        if request.nonce != self._nonce:
            return Reply.FOREIGN, b""
        with self._lock:
            group = self._groups.get(request.group_key)
            if self._incarnations.get(request.actor) != request.incarnation:
                return Reply.DISPLACED, b""
            if group is None and request.number > 0:
                return Reply.LOST, b""
            if group is None:
                group = EnvironmentGroup(self._spec, request.environments, self._initial_state)
                self._groups[request.group_key] = group
            return group.try_accept(request.number)

    def _take_unrolls(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the unrolls that the group's step ended, and their versions."""
        request = InferenceRequest(*map(int, numbers))
        with self._lock:
            group = self._groups.get(request.group_key)
        try:
            contents, version = group.take_unrolls() if group else ([], 0)
        except BaseException:
            self.forget(request.actor)  # else its calls would wait for this one for ever
            raise
        versions = np.full([len(contents)], version, np.int64)
        return np.array(contents, object), versions

    def _complete(self, numbers: np.ndarray, actions: bytes, episodes: np.ndarray) -> np.ndarray:
        """Return what a call is told, now that its unrolls are in the queue."""
        request = InferenceRequest(*map(int, numbers))
        with self._lock:
            group = self._groups.get(request.group_key)
            if group is None or not actions:
                return self._numbers(Reply.LOST)
            group.complete(bytes(actions))
        self._answered(request, episodes)
        return self._numbers(Reply.ACCEPTED)

    def _numbers(self, reply: int) -> np.ndarray:
        return np.array([reply, NO_POLICY if self._version is None else self._version])

    # -- one batch of calls, in a graph; never two at the same time

    def _infer(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """Return actions as bytes, string [N], of N calls with M environments in all."""
        step = self._spec.step
        read = (step.observation, step.reward, step.action, step.first)
        rows, starting, *entry = tf.numpy_function(
            self._write_steps, [headers, contents], [tf.int32, tf.int32, *[s.dtype for s in read]]
        )
        rows, starting = tf.ensure_shape(rows, [None]), tf.ensure_shape(starting, [None])
        observation, reward, action, first = (
            tf.ensure_shape(part, [None, *s.shape]) for part, s in zip(entry, read, strict=True)
        )
        with tf.control_dependencies([rows]), tf.device(self._device):
            starts = tf.nest.flatten(self._states.read(starting))
            state = self._states.read(rows)
            entries = Entry(action, reward, None, None, observation, first, None)
            actions, state, extras = self._algorithm.act(entries, state, tf.ones_like(reward))
            written = self._states.write(rows, state)
        with tf.control_dependencies(written):
            results = [actions, *tf.nest.flatten(extras)]
            answers = tf.numpy_function(self._set_actions, [*results, *starts], tf.string)
        return tf.ensure_shape(answers, [None])

    def _write_steps(self, headers: np.ndarray, contents: np.ndarray) -> list[np.ndarray]:
        """Write each call's step; return what is to be read next, of all: rows [M], rows that start
        an unroll with it [K], and observation, reward, action, first [M, ...].
        """
        version, values = self._published
        if version != self._version:
            self._layout.assign(values)
            self._version = version
        with self._lock:
            unused, self._unused_rows = self._unused_rows, []
        for rows in unused:
            self._states.release(rows)
        self._batch = [
            self._write_step(InferenceRequest(*map(int, numbers)), content)
            for numbers, content in zip(headers, contents, strict=True)
        ]
        self._states.grow()
        step = self._spec.step
        groups = [group for group in self._batch if group]
        newest = [group.writer.newest for group in groups]
        parts = [
            np.concatenate([getattr(entry, name) for entry in newest])
            if newest
            else np.zeros([0, *getattr(step, name).shape], getattr(step, name).dtype.as_numpy_dtype)
            for name in ("observation", "reward", "action", "first")
        ]
        self.calls, self.batches = self.calls + len(groups), self.batches + 1
        self._steps += len(parts[1])
        starting = [group for group in groups if group.writer.at_unroll_start]
        return [_rows_of(groups), _rows_of(starting), *parts]

    def _write_step(self, request: InferenceRequest, content: bytes) -> EnvironmentGroup | None:
        """Write a call's step into its group's unroll; None where the group is gone."""
        with self._lock:
            group = self._groups.get(request.group_key)
        raw = decompress(content, self._codec.size * group.size) if group else None
        with self._lock:
            if group is None or raw is None or self._groups.get(request.group_key) is not group:
                return None
            if group.rows is None:
                group.rows = self._states.allocate(group.size)
        group.write(self._codec.decode(raw, group.size), self._version or 0)
        return group

    def _set_actions(self, actions: np.ndarray, *flat: np.ndarray) -> np.ndarray:
        """Give each group of the batch its actions, extras and start; return the answers [N]."""
        split = len(flat) - len(self._states)
        extras, starts = flat[:split], flat[split:]
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
            own_extras = [np.array(part[begin:end]) for part in extras]
            answers.append(group.set_actions(np.array(actions[begin:end], np.int32), own_extras))
            begin = end
        return np.array(answers, object)


def _rows_of(groups: list[EnvironmentGroup]) -> np.ndarray:
    """Return the rows of all, int32 [K]."""
    rows = [group.rows for group in groups if group.rows is not None]
    return np.concatenate([np.zeros([0], np.int32), *rows])
