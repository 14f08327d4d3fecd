"""A replay of sequences by priority, which `recurrent_q` uses as its source."""

import numpy as np

from impala_mm.data import batches


class PrioritisedReplay:
    """A source of batches of new unrolls and of unrolls that are drawn by priority.

    An unroll's key counts the unrolls since the run began; it is held at key % capacity.
    """

    def __init__(self, fresh, unroll, config):
        self._fresh, self._config = fresh, config
        self._held = batches.zeros(unroll, config.replay_capacity)
        self._priorities = np.zeros(config.replay_capacity)
        self._added = 0
        self._random = np.random.default_rng()

    def next(self, timeout):
        batch = self._fresh.next(timeout)
        if batch is None:
            return None
        new = batches.to_numpy(batch)
        new = new._replace(key=self._added + np.arange(len(new.key)))
        places = new.key % self._config.replay_capacity
        batches.assign(self._held, places, new)
        # An unroll has the largest priority until an update has measured its error.
        self._priorities[places] = self._priorities.max() or 1.0
        self._added += len(places)
        return batches.join([new, self._draw()]) if self._config.replayed else new

    def _draw(self):
        """Return unrolls drawn by priority, weighted against their being drawn more often."""
        config, count = self._config, min(self._added, self._config.replay_capacity)
        scaled = self._priorities[:count] ** config.priority_power
        chances = scaled / scaled.sum()
        places = self._random.choice(count, config.replayed, p=chances)
        weight = (count * chances[places]) ** -config.weight_power
        drawn = batches.replayed(batches.columns(self._held, places))
        return drawn._replace(weight=(weight / weight.max()).astype(np.float32))

    def feedback(self, keys, priorities):
        keys, priorities = np.asarray(keys), np.asarray(priorities)
        places = keys % self._config.replay_capacity
        held = self._held.key[places] == keys  # others were overwritten in the meantime
        self._priorities[places[held]] = np.maximum(priorities[held], 1e-3)

    def save(self, folder):
        batches.save(self._held, folder)
        np.savez(folder / "priorities.npz", priorities=self._priorities, added=self._added)

    def restore(self, folder):
        batches.restore(self._held, folder)
        saved = np.load(folder / "priorities.npz")
        self._priorities[:], self._added = saved["priorities"], int(saved["added"])
