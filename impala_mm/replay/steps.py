"""A replay of single steps, for algorithms that make many small updates, such as SAC.

    actors' new unrolls ---> arrays of unrolls ---steps drawn at random---> one batch of many steps
             |---> their steps, once each, among these ---------------------^

The arrays hold the newest unrolls uncompressed, so that drawing thousands of steps takes two
gathers of NumPy. Where a step means nothing without those before it, whole unrolls are drawn.
"""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from impala_mm.data import batches
from impala_mm.data.trajectory import Batch, UnrollCodec, UnrollSpec
from impala_mm.replay.shard import decode_random, encode_random
from impala_mm.runtime import machine


class Fresh(Protocol):
    """The source of new unrolls."""

    def next(self, timeout: float) -> Batch | None:
        """Return a batch of new unrolls, or None."""


class StepReplay:
    """A `BatchSource` of new steps and of old ones, which it draws with equal probability.

    A batch consists of columns of two entries, or with `whole` of unrolls. Its new steps are in one
    batch, and count as played there; those before the first batch are only stored.
    """

    def __init__(
        self,
        fresh: Fresh,
        unroll: UnrollSpec,
        capacity: int,
        columns: int,
        minimum: int,
        seed: list[int],
        whole: bool = False,
    ):
        """Hold `capacity` unrolls, and return batches of `columns` once `minimum` are stored."""
        self._fresh, self._columns, self._whole = fresh, columns, whole
        self._minimum, self._length = minimum, unroll.length
        self._held = batches.zeros(unroll, capacity)
        self._added = 0  # unrolls since the beginning of the run
        self._stored_steps = 0  # steps that will be in no batch as new ones
        self._random = np.random.default_rng(seed)

    @property
    def size(self) -> int:
        """The unrolls that are held."""
        return min(self._added, len(self._held.weight))

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None if there is none within `timeout` seconds."""
        batch = self._fresh.next(timeout)
        if batch is None:
            return None
        new = batches.to_numpy(batch)
        count = len(new.weight)
        places = (self._added + np.arange(count)) % len(self._held.weight)
        batches.assign(self._held, places, new)
        self._added += count
        if self._added < self._minimum:
            self._stored_steps += int((~new.unrolls.first[1:]).sum())
            return None
        return self._draw(places)

    def _draw(self, places: np.ndarray) -> Batch:
        """Return a batch of the new unrolls at these places, and of unrolls drawn at random."""
        times = np.arange(1 if self._whole else self._length)
        drawn = self._columns - len(places) * len(times)
        at = np.concatenate(
            [np.repeat(places, len(times)), self._random.integers(self.size, size=drawn)]
        )
        t = np.concatenate(
            [np.tile(times, len(places)), self._random.integers(len(times), size=drawn)]
        )
        fresh = np.arange(self._columns) < self._columns - drawn
        return _pick(self._held, at, t, self._whole)._replace(fresh=fresh)

    def feedback(self, keys: Any, priorities: Any) -> None:
        """Ignore priorities: all steps are drawn alike."""

    def take_stored_steps(self) -> int:
        """Return the steps since the last call that will be in no batch as new ones."""
        steps, self._stored_steps = self._stored_steps, 0
        return steps

    def filling(self) -> tuple[int, int]:
        """Return the unrolls that have arrived and those that the first update needs; then 0, 0."""
        return (self._added, self._minimum) if self._added < self._minimum else (0, 0)

    def metrics(self) -> dict[str, float]:
        """Return how many unrolls are held."""
        return {"replay_unrolls/uniform": float(self.size)}


def make(
    fresh: Fresh,
    unroll: UnrollSpec,
    *,
    capacity: int,
    columns: int,
    minimum: int,
    seed: list[int],
    whole: bool = False,
    saved: bool = False,
) -> StepReplay:
    """Return the replay for an algorithm's `source`; `saved`: with checkpoints (--replay_save).

    `seed` must differ between learners, as [config.seed, Setup.rank] does.
    """
    kind = SavedStepReplay if saved else StepReplay
    return kind(fresh, unroll, capacity, columns, minimum, seed, whole)


def refuse_too_large(unroll: UnrollSpec, capacity: int, learners: int, flag: str) -> None:
    """Refuse a replay of this many unrolls that does not fit in memory, which it takes as it fills.

    `learners` have one each on this machine (`Setup.learners_here`); `flag` gives its size.
    """
    of = f" for {learners} learners" if learners > 1 else ""
    machine.refuse_too_many_unrolls(f"{flag}{of}", learners * capacity, UnrollCodec(unroll).size)


class RecordedSteps:
    """A `BatchSource` of the steps of recorded games, all of which have equal probability."""

    def __init__(self, unrolls: Batch, columns: int, seed: list[int], whole: bool = False):
        """Return batches of `columns`: two entries each, or with `whole` unrolls."""
        self._held, self._columns, self._whole = unrolls, columns, whole
        self._random = np.random.default_rng(seed)

    def next(self, timeout: float) -> Batch:
        """Return a batch."""
        del timeout
        count, steps = len(self._held.weight), len(self._held.unrolls.first) - 1
        at = self._random.integers(count, size=self._columns)
        t = self._random.integers(1 if self._whole else steps, size=self._columns)
        return _pick(self._held, at, t, self._whole)

    def feedback(self, keys: Any, priorities: Any) -> None:
        """Ignore priorities: all steps are drawn alike."""


def _pick(held: Batch, at: np.ndarray, t: np.ndarray, whole: bool) -> Batch:
    """Return the steps from entries t [N] of the unrolls at places [N], or these unrolls."""
    if whole:
        return batches.columns(held, at)

    def pick(leaf: np.ndarray) -> np.ndarray:
        flat = leaf.reshape(-1, *leaf.shape[2:])
        number = t * leaf.shape[1] + at
        return flat.take(np.stack([number, number + leaf.shape[1]]), axis=0)

    entries = tf.nest.map_structure(pick, held.unrolls)
    start, *rest = tf.nest.map_structure(lambda leaf: leaf[at], list(held[1:]))
    return Batch(entries, start, *rest)


class SavedStepReplay(StepReplay):
    """A `StepReplay` that is saved with checkpoints."""

    def save(self, folder: Path) -> None:
        """Write what is held, and the state of the random numbers, to this folder."""
        batches.save(self._filled(), folder)
        np.savez(folder / "state.npz", added=self._added, random=encode_random(self._random))

    def restore(self, folder: Path) -> None:
        """Hold what `save` wrote; raise ValueError if it is of another size or kind."""
        saved = np.load(folder / "state.npz")
        self._added = int(saved["added"])
        batches.restore(self._filled(), folder)
        decode_random(self._random, saved["random"])

    def make_older(self, updates: int) -> None:
        """Subtract a number from the policy versions of what is held."""
        versions = self._filled().version
        versions -= updates

    def _filled(self) -> Batch:
        """Return a view of the unrolls that are held."""
        size, held = self.size, self._held
        unrolls = tf.nest.map_structure(lambda leaf: leaf[:, :size], held.unrolls)
        start, *rest = tf.nest.map_structure(lambda leaf: leaf[:size], list(held[1:]))
        return Batch(unrolls, start, *rest)
