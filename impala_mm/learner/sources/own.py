"""The replay, or an algorithm's own source of batches, as the training loop uses it.

    actors' queue ---fresh---> the replay or source ---batches---> OwnSource ---> Lockstep

With several learners the thread of `Lockstep` asks for the next batch while another thread trains,
and a third one saves. `OwnSource` lets one thread at a time call the algorithm's source, which
therefore needs no locks, and copies its batches to the training device.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, UnrollSpec, leaf_names
from impala_mm.learner.sources.batch_source import BatchSource, UnrollQueue
from impala_mm.replay.shard import Share
from impala_mm.replay.source import ReplaySource, Turns
from impala_mm.replay.steps import StepReplay
from impala_mm.runtime import devices

_CPU = "/CPU:0"


class BadSource(Exception):
    """A source returns what an update cannot use; the message says what."""


class OwnSource(BatchSource):
    """The batches of the replay, or of an algorithm's own source, on the training device.

    Priorities are passed on before the next batch is asked for, by the same thread.
    """

    def __init__(
        self,
        make: Callable[[Any], Any],
        fresh: BatchSource | UnrollQueue | Turns,
        unroll: UnrollSpec,
    ):
        """Make the source from `fresh`; `unroll` is that of its batches."""
        self._make, self._fresh = make, fresh
        self._device = devices.training_device()
        self._source = make(fresh)
        for name in ("next", "feedback"):
            if not callable(getattr(self._source, name, None)):
                raise BadSource(
                    f"the algorithm's source(fresh) returns {type(self._source).__name__}, with "
                    f"no method {name}: see BatchSource (impala_mm/learner/sources/batch_source.py)"
                )
        saves = [callable(getattr(self._source, name, None)) for name in ("save", "restore")]
        if saves[0] != saves[1]:
            has, lacks = ("save", "restore") if saves[0] else ("restore", "save")
            raise BadSource(
                f"the algorithm's source, a {type(self._source).__name__}, has a method {has} but "
                f"no {lacks}: both are needed to resume it"
            )
        self.saves = all(saves)  # whether its contents are saved with checkpoints
        self._like = Batch(
            unroll.step,
            unroll.start,
            key=tf.TensorSpec([], tf.int64),
            weight=tf.TensorSpec([], tf.float32),
            version=tf.TensorSpec([], tf.int64),
            fresh=tf.TensorSpec([], tf.bool),
        )
        self._names = leaf_names(self._like, "batch", ".")
        self._first: list[tuple[Any, ...]] = []  # (shape, type) of each leaf of the first batch
        self._lock = threading.Lock()  # held by the thread that calls the source
        self._waiting = threading.Event()  # set while a thread waits for its turn to save
        self._priorities: deque[tuple[tf.Tensor, tf.Tensor]] = deque()
        # What the source said of itself when it was last asked for a batch: others ask meanwhile.
        self._filling, self._metrics = (0, 0), dict[str, float]()

    @property
    def noun(self) -> str:
        """The word by which messages name the source."""
        is_replay = isinstance(self._source, ReplaySource | StepReplay)
        return "replay" if is_replay else "source"

    def next(self, timeout: float) -> Batch | None:
        """Return the source's next batch, or None; raises BadSource."""
        if self._waiting.is_set():  # a lock is not fair: this thread would take it again
            time.sleep(min(timeout, 0.01))
        with self._lock:
            self._pass_priorities_on()
            batch = self._source.next(timeout)
            self._filling = getattr(self._source, "filling", lambda: (0, 0))()
            self._metrics = dict(getattr(self._source, "metrics", dict)())
        if batch is None:
            return None
        self._check(batch)
        return self._place(batches.without_nan_in_padding(batch))

    def feedback(self, keys: tf.Tensor, priorities: tf.Tensor) -> None:
        """Keep the priorities for the source until it is asked for a batch, or saved."""
        self._priorities.append((keys, priorities))

    def take_stored_steps(self) -> int:
        """Return the steps of unrolls that the source has stored and that will be fresh nowhere."""
        return getattr(self._source, "take_stored_steps", lambda: 0)()

    def filling(self) -> tuple[int, int]:
        """Return the unrolls that the source has and needs for its first batch; 0, 0: not known."""
        return self._filling

    def metrics(self) -> dict[str, float]:
        """Return the source's own metrics."""
        return self._metrics

    def save(self, folder: Path) -> None:
        """Let the source save its contents to this folder, which exists and is empty."""
        self._waiting.set()
        with self._lock:
            self._waiting.clear()
            self._pass_priorities_on()
            self._source.save(folder)

    @property
    def deals_out(self) -> bool:
        """Whether the source can restore parts of what other learners have saved."""
        return hasattr(self._source, "restore_shares")

    def restore_shares(self, shares: Sequence[Share]) -> None:
        """Let the source restore these parts of what learners have saved, as `restore` does."""
        with self._lock, self._made_anew_if_it_fails():
            self._source.restore_shares(shares)

    def restore(self, folder: Path) -> None:
        """Let the source restore what it saved; if it raises an exception, it is made anew."""
        with self._lock, self._made_anew_if_it_fails():
            self._source.restore(folder)

    def make_older(self, updates: int) -> None:
        """Subtract a number from the policy versions of what the source holds, if it knows how."""
        with self._lock:
            getattr(self._source, "make_older", lambda updates: None)(updates)

    @contextlib.contextmanager
    def _made_anew_if_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._source = self._make(self._fresh)
            raise

    def _pass_priorities_on(self) -> None:
        while self._priorities:
            self._source.feedback(*self._priorities.popleft())

    def _check(self, batch: Any) -> None:
        """Raise BadSource if a batch does not have the structure, types and shapes expected."""
        try:
            if not isinstance(batch, Batch):
                raise TypeError(f"it is a {type(batch).__name__}")
            tf.nest.assert_same_structure(self._like, batch, check_types=False)
            leaves = tf.nest.flatten(batch)
            returned = [(tuple(leaf.shape), tf.as_dtype(leaf.dtype)) for leaf in leaves]
        except (TypeError, ValueError, AttributeError) as error:
            raise BadSource(
                f"the algorithm's source returned no Batch of tensors or arrays like those of the "
                f"actors' queue: {str(error).splitlines()[0]}"
            ) from None
        # The first batch must fit the algorithm's unrolls, and the others are like the first one.
        expected = self._first or self._expected(returned)
        hint = (
            ": an update is compiled for the shapes of the first batch, so every batch needs as "
            "many columns (impala_mm.data.batches.padded adds columns of weight 0)"
        )
        for name, has, needs in zip(self._names, returned, expected, strict=True):
            if has != needs:
                raise BadSource(
                    f"the algorithm's source returned {name} {_describe(*has)} instead of "
                    f"{_describe(*needs)}{hint if self._first else ''}"
                )
        self._first = returned

    def _expected(self, returned: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return the shape and type that each leaf must have in a batch of so many columns."""
        timed = len(tf.nest.flatten(self._like.unrolls))
        columns = returned[-1][0][:1]  # (B,), from `fresh`
        return [
            ((*(shape[:1] if i < timed else ()), *columns, *spec.shape), spec.dtype)
            for i, ((shape, _), spec) in enumerate(
                zip(returned, tf.nest.flatten(self._like), strict=True)
            )
        ]

    def _place(self, batch: Batch) -> Batch:
        """Return a batch of tensors: its entries on the training device, the rest on the CPU."""
        # Arrays are copied, so that the source may change them as soon as it is asked again.
        with tf.device(_CPU):
            first, *rest = tf.nest.map_structure(_to_tensor, [batch.unrolls.first, *batch[2:]])
            read = tf.nest.map_structure(_to_tensor, (batch.unrolls, batch.start))
        if self._device != _CPU:
            with tf.device(self._device):
                read = tf.nest.map_structure(tf.identity, read)
        # `first` stays on the CPU, where steps are counted.
        return Batch(read[0]._replace(first=first), read[1], *rest)


def _to_tensor(leaf: Any) -> tf.Tensor:
    return leaf if tf.is_tensor(leaf) else tf.constant(leaf)


def _describe(shape: tuple[int, ...], dtype: tf.DType) -> str:
    return f"{dtype.name} {list(shape)}"
