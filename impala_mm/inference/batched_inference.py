"""Inference at the learner: it acts for actors that only step environments, and cuts their unrolls.

One step's path: an actor's call brings what a step of a group of environments brought. Calls that
wait at the same time become one batch: each group's step is written into its unroll (`assembly`),
the network reads all newest entries, from core states that stay in tables on its device, and each
call is answered with its group's actions. An unroll that is whole goes into the queue that actors
otherwise fill themselves; its call is answered once there was room. `server` registers `answer`.

A group is the learner's for one incarnation of its actor: what a call repeats gets its first answer
again, and an actor that comes back begins with a reset. The acting variables are copies, renewed
between two batches.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm.algorithms.interface import Algorithm
from impala_mm.data.compression import decompress
from impala_mm.data.parameter_layout import ParameterLayout
from impala_mm.data.step_codec import StepCodec
from impala_mm.data.trajectory import Entry
from impala_mm.inference.environment_group import ACT, EnvironmentGroup, RowAllocator
from impala_mm.transport.delivery import ACCEPTED, DISPLACED, FOREIGN, LOST
from impala_mm.transport.messages import TRY_BITS, InferenceRequest

_MAX_CALLS = 256  # at most, in one batch
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
        self._newest: tuple[int, Sequence[tf.Tensor]] = -1, ()
        self._version = -1  # of the variables that act
        self._rows = RowAllocator()
        self._left: list[np.ndarray] = []  # rows of groups that are gone
        initial = algorithm.initial_state(1)
        with tf.device(device):
            self._tables = [  # of core states, a row for each environment
                tf.Variable(_as_stored(part)[:0], False, shape=[None, *_as_stored(part).shape[1:]])
                for part in tf.nest.flatten(initial)
            ]
        self._state = initial  # its structure
        # Whoever computed this in a call might wait there for the thread that the call is in.
        self._start = [np.asarray(part) for part in tf.nest.flatten(initial)]
        self._batch: list[
            EnvironmentGroup | None
        ] = []  # whose calls are being answered; None: nobody's
        self._inferring = tf.function(self._infer, autograph=False).get_concrete_function(
            tf.TensorSpec([None, len(InferenceRequest._fields)], tf.int64),
            tf.TensorSpec([None], tf.string),
        )
        self._name = f"inference-{secrets.token_hex(8)}"  # else two of a process would share it
        self._incarnations: dict[int, int] = {}  # of each actor
        self._nonce, self._closed = -1, False  # of the learner's process; whether its run is over
        self._heard: Callable[[int], None] = lambda actor: None
        self._ended: Callable[[InferenceRequest, np.ndarray], None] = lambda asking, episodes: None
        self.calls = self.batches = 0  # so far
        self._steps, self._counted = 0, (0, 0)  # steps so far; batches and steps at the last count

    def serve(
        self,
        nonce: int,
        heard: Callable[[int], None],
        ended: Callable[[InferenceRequest, np.ndarray], None],
    ) -> None:
        """For the learner's process of this nonce. `heard` is told of each call's actor, `ended`
        of each call that was answered, and what episodes it said had ended.
        """
        self._nonce, self._heard, self._ended = nonce, heard, ended

    def close(self) -> None:
        """From now on nobody is answered: unrolls have nowhere to go."""
        self._closed = True

    def publish(self, version: int, values: Sequence[tf.Tensor]) -> None:
        """Values of the acting variables, for the batches after this one."""
        self._newest = version, values

    def join(self, actor: int, incarnation: int) -> None:
        """From now on this incarnation is the actor; what others had begun is dropped.

        An earlier connection of the same life, whose hello was heard late, changes nothing.
        """
        with self._lock:
            known = self._incarnations.get(actor, 0)
            if known >> TRY_BITS == incarnation >> TRY_BITS and known > incarnation:
                return
            self._incarnations[actor] = incarnation
        self.forget(actor)

    def forget(self, actor: int) -> None:
        """Drops what an actor had begun: it has left, or begins anew."""
        with self._lock:
            for of in [of for of in self._groups if of[0] == actor]:
                # Some may be in the batch that is being inferred: the next frees them.
                self._left.append(self._groups.pop(of).rows)

    def mean_batch(self) -> float:
        """Environments that were inferred at once, since it was asked last; 0: none."""
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
        """(int64 [2]: a code of the ledger's and the version that acts; actions, int32 as bytes).

        `header`: Asking as int64; `content`: a step as bytes, which a call that is repeated may
        leave out. Unrolls go into `queue`, and are waited for until they are there.
        """

        def act() -> tuple[tf.Tensor, tf.Tensor]:
            actions = self._batched(header[None], content[None])[0]
            with tf.control_dependencies([actions]):
                contents, versions = tf.numpy_function(self._whole, [header], [tf.string, tf.int64])
            put = queue.enqueue_many(
                [tf.ensure_shape(contents, [None]), tf.ensure_shape(versions, [None])]
            )
            with tf.control_dependencies([put]):
                numbers = tf.numpy_function(self._end, [header, actions, episodes], tf.int64)
            return tf.ensure_shape(numbers, [2]), actions

        numbers, before = tf.numpy_function(self._begin, [header], [tf.int64, tf.string])
        numbers, before = tf.ensure_shape(numbers, [2]), tf.ensure_shape(before, [])
        return tf.cond(tf.equal(numbers[0], ACT), act, lambda: (numbers, before))

    def _batched(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """`_infer` of these calls and all that wait at the same time; the answers of these."""
        answers = tf.raw_ops.BatchFunction(
            in_tensors=[headers, contents],
            captured_tensors=self._inferring.captured_inputs,
            f=self._inferring,
            num_batch_threads=1,
            max_batch_size=_MAX_CALLS,
            batch_timeout_micros=0,  # what waits while a batch is inferred is the next one
            max_enqueued_batches=_MAX_WAITING,
            shared_name=self._name,
            Tout=[tf.string],
        )
        return tf.ensure_shape(answers[0], [None])

    def _begin(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What a call is: new, a repetition, or no longer to be answered."""
        if self._closed:
            raise RuntimeError("the run has ended")  # for the caller, as if nobody were here
        asking = InferenceRequest(*map(int, numbers))
        code, before = FOREIGN, b""
        with self._lock:
            group = self._groups.get(asking.of)
            if asking.nonce != self._nonce:
                pass
            elif self._incarnations.get(asking.actor) != asking.incarnation:
                code = DISPLACED
            elif group is None and asking.number > 0:
                code = LOST
            else:
                if group is None:
                    group = EnvironmentGroup(self._spec, asking.environments, self._start)
                    self._groups[asking.of] = group
                code, before = group.begin(asking.number)
        if code not in {FOREIGN, DISPLACED}:
            self._heard(asking.actor)
        return np.array([code, self._version]), np.array(before, object)

    def _whole(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The group's unrolls that are whole, and their versions."""
        asking = InferenceRequest(*map(int, numbers))
        with self._lock:
            group = self._groups.get(asking.of)
        try:
            contents, version = group.cut() if group else ([], 0)
        except BaseException:
            self.forget(asking.actor)  # else its calls would wait for this one for ever
            raise
        versions = np.full([len(contents)], version, np.int64)
        return np.array(contents, object), versions

    def _end(self, numbers: np.ndarray, actions: bytes, episodes: np.ndarray) -> np.ndarray:
        asking = InferenceRequest(*map(int, numbers))
        with self._lock:
            group = self._groups.get(asking.of)
            if group is None or not actions:
                return np.array([LOST, self._version])
            group.end(bytes(actions))
        self._ended(asking, episodes)
        return np.array([ACCEPTED, self._version])

    # -- one batch of calls, in a graph; never two at the same time

    def _infer(self, headers: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        """Actions as bytes, string [N], of N calls with M environments in all."""
        step = self._spec.step
        read = (step.observation, step.reward, step.action, step.first)
        rows, beginning, *entry = tf.numpy_function(
            self._arrive, [headers, contents], [tf.int32, tf.int32, *[s.dtype for s in read]]
        )
        rows, beginning = tf.ensure_shape(rows, [None]), tf.ensure_shape(beginning, [None])
        observation, reward, action, first = (
            tf.ensure_shape(part, [None, *s.shape]) for part, s in zip(entry, read, strict=True)
        )
        with tf.control_dependencies([rows]), tf.device(self._device):
            starts = tf.nest.flatten(self._read(beginning))
            state = self._read(rows)
            entries = Entry(action, reward, None, None, observation, first, None)
            actions, state, extras = self._algorithm.act(entries, state, tf.ones_like(reward))
            written = [
                table.scatter_update(tf.IndexedSlices(_as_stored(part), rows))
                for table, part in zip(self._tables, tf.nest.flatten(state), strict=True)
            ]
        with tf.control_dependencies(written):
            results = [actions, *tf.nest.flatten(extras)]
            answers = tf.numpy_function(self._acted, [*results, *starts], tf.string)
        return tf.ensure_shape(answers, [None])

    def _read(self, rows: tf.Tensor) -> Any:
        """The core states of these rows, nest of [M, ...]."""
        parts = [
            _from_stored(tf.gather(table, rows), part)
            for table, part in zip(self._tables, tf.nest.flatten(self._state), strict=True)
        ]
        return tf.nest.pack_sequence_as(self._state, parts)

    def _arrive(self, headers: np.ndarray, contents: np.ndarray) -> list[np.ndarray]:
        """Writes each call's step; what is to be read next, of all: rows [M], beginning [K] (rows
        of those that begin an unroll with it), observation, reward, action, first [M, ...].
        """
        version, values = self._newest
        if version != self._version:
            self._layout.assign(values)
            self._version = version
        self._batch = []
        with self._lock:
            left, self._left = self._left, []
        for rows in left:
            self._rows.free(rows)
        for numbers, content in zip(headers, contents, strict=True):
            asking = InferenceRequest(*map(int, numbers))
            with self._lock:
                group = self._groups.get(asking.of)
            raw = decompress(content, self._codec.size * len(group.rows)) if group else None
            with self._lock:
                if raw is None or self._groups.get(asking.of) is not group:
                    group = None
                elif group and not group.begun:
                    group.rows = self._rows.take(len(group.rows))
            if group and raw:
                group.write(self._codec.decode(raw, len(group.rows)), self._version)
            self._batch.append(group)
        self._grow()
        step = self._spec.step
        there = [group for group in self._batch if group]
        newest = [group.assembly.newest for group in there]
        fields = ("observation", "reward", "action", "first")
        parts = [
            np.concatenate([getattr(entry, name) for entry in newest])
            if newest
            else np.zeros([0, *getattr(step, name).shape], getattr(step, name).dtype.as_numpy_dtype)
            for name in fields
        ]
        self.calls, self.batches = self.calls + len(there), self.batches + 1
        self._steps += len(parts[1])
        beginning = [group.rows for group in there if group.assembly.starts]
        return [
            _concatenate_rows([group.rows for group in there]),
            _concatenate_rows(beginning),
            *parts,
        ]

    def _acted(self, actions: np.ndarray, *flat: np.ndarray) -> np.ndarray:
        """Hands each group of the batch its actions, extras and start; the calls' answers [N]."""
        extras, starts = (
            flat[: len(flat) - len(self._tables)],
            flat[len(flat) - len(self._tables) :],
        )
        begin = first = 0
        answers = []
        for group in self._batch:
            if group is None:
                answers.append(b"")
                continue
            end = begin + len(group.rows)
            if group.assembly.starts:
                last = first + len(group.rows)
                group.assembly.begins_with([np.array(part[first:last]) for part in starts])
                first = last
            with_them = [np.array(part[begin:end]) for part in extras]
            answers.append(group.choose(np.array(actions[begin:end], np.int32), with_them))
            begin = end
        return np.array(answers, object)

    def _grow(self) -> None:
        """Tables for as many rows as were given out."""
        for table in self._tables:
            missing = self._rows.count - int(table.shape[0] or tf.shape(table)[0])
            if missing > 0:
                more = tf.zeros([missing, *table.shape[1:]], table.dtype)
                table.assign(tf.concat([table, more], 0))


def _concatenate_rows(rows: list[np.ndarray]) -> np.ndarray:
    """int32 [K] of all."""
    return np.concatenate([np.zeros([0], np.int32), *rows])


def _as_stored(part: tf.Tensor) -> tf.Tensor:
    """A part of states [N, ...] as its table has it: whole numbers as float32, bit for bit.

    Where tables of whole numbers are on a GPU, TensorFlow scatters them on the CPU, all of a table.
    """
    size = part.shape[1:].num_elements() * part.dtype.size
    if not part.dtype.is_integer or part.dtype.size > 4 or size % 4:
        return part
    if part.dtype.size == 4:
        return tf.bitcast(part, tf.float32)
    return tf.bitcast(tf.reshape(part, [-1, size // 4, 4 // part.dtype.size]), tf.float32)


def _from_stored(kept: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """States [N, ...] of the type and shape of `like`, from what a table has."""
    if kept.dtype == like.dtype:
        return kept
    return tf.reshape(tf.bitcast(kept, like.dtype), [-1, *like.shape[1:]])
