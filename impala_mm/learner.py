"""A learner: takes batches of unrolls, trains on them, publishes the parameters.

One unroll's path ends here: `server` put it into its queue, `source` takes batches out of it while
the step before runs, `Learner._train` updates the algorithm's variables with each and hands the new
parameters back to the server, from which actors fetch them.
"""

import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from impala_mm import metrics as measuring
from impala_mm.algorithms import Algorithm, Context
from impala_mm.checkpoint import Checkpoints, Unwritable
from impala_mm.config import Config
from impala_mm.environments import EnvironmentSpec
from impala_mm.exchange import Exchange
from impala_mm.parameters import Layout
from impala_mm.server import Server
from impala_mm.source import Source
from impala_mm.trajectory import Batch

_ROW_SECONDS = 2.0  # between rows of metrics
_LINE_SECONDS = 5.0  # between progress lines; the first comes with the first frames
Say = Callable[[str], None]


class Learner:
    """The training loop, in a thread of its own: signals reach Python only where TensorFlow waits
    elsewhere.
    """

    def __init__(
        self,
        config: Config,
        algorithm: Algorithm,
        exchange: Exchange,
        source: Source,
        server: Server,
        layout: Layout,
        checkpoints: Checkpoints,
        log: measuring.Log,
        levels: dict[str, EnvironmentSpec],
        limits: "Limits",
        say: Say,
    ):
        self._config, self._algorithm, self._exchange = config, algorithm, exchange
        self._source, self._server, self._layout = source, server, layout
        self._checkpoints, self._log, self._say = checkpoints, log, say
        self._repeats = next(iter(levels.values())).action_repeats  # the same for all
        self._limits = limits
        self._meter = measuring.Meter({name: spec.scores for name, spec in levels.items()})
        self._histograms = measuring.Thinning()
        self._actions: tf.Tensor | None = None  # int32 [T+overlap, B], of the last batch
        self._update = tf.function(self._one_update, autograph=False)
        self._stop = threading.Event()
        self._whole = threading.Lock()  # held while variables change: a save waits for it
        self.ended = ""  # why the training thread ended; empty while it runs
        self.failure: BaseException | None = None
        self.saved = True  # whether the last checkpoint was written
        self._writes = True  # whether the last row was
        self.steps, self.updates, self.seconds = 0, 0, 0.0
        self._from = 0.0  # frames at which this process began

    @property
    def frames(self) -> float:
        """Environment frames trained on, of all learners."""
        return float(self.steps * self._repeats)

    def stop(self, reason: str) -> None:
        """Ends training after the running update."""
        self.ended = self.ended or reason
        self._stop.set()

    def resume(self) -> None:
        """Goes on from the folder's newest checkpoint, if there is one; raises its Mismatch."""
        progress = self._checkpoints.restore()
        if progress:
            self.updates, self.steps = progress["updates"], progress["steps"]
            self.seconds = progress["seconds"]
            self._say(f"resumed at {self.frames:,.0f} frames, update {self.updates}")

    def run(self, meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Trains to a limit or `stop`; calls `meanwhile` several times a second; the last row."""
        begin, before, self._from = time.monotonic(), self.seconds, self.frames
        self._server.publish(self.updates, self._layout.pack())
        self._meter.start(self.frames, self.steps)
        training = threading.Thread(target=self._guarded, name="training", daemon=True)
        training.start()
        row_at, saved_at, said_at, said = begin, begin, begin, False
        row: dict[str, Any] = {}
        while training.is_alive():
            training.join(0.1)
            meanwhile()
            now = time.monotonic()
            self.seconds = before + now - begin
            first = not said and self.frames > self._from
            if now - row_at >= _ROW_SECONDS or first:
                row, row_at = self._row(), now
                if now - said_at >= _LINE_SECONDS or first:
                    said_at, said = now, said or first
                    actors = len(self._server.actors)
                    self._say(measuring.line(row, self._limits.frames, actors))
            if now - saved_at >= self._config.save_checkpoint_secs:
                saved_at = now
                self._save()
            if self._actions is not None and self._histograms.due(now - begin):
                self._show_histograms()
            for actor in self._server.silent(60):
                self._say(f"actor {actor} has left: nothing came from it for 60 s")
        self.seconds = before + time.monotonic() - begin
        row = self._row()
        if self.failure is None:
            self._save()
        self._server.close()
        return row

    # -- the training thread

    def _guarded(self) -> None:
        try:
            self._train()
        except BaseException as error:
            self.failure = error
            self.ended = f"{type(error).__name__}: {error}"

    def _train(self) -> None:
        meter, clock = self._meter, time.monotonic
        before, rest = clock(), 0.0
        while not self._stop.is_set() and not self._reached():
            batch = self._source.next(timeout=0.2)
            got = clock()
            if batch is None:
                meter.add_times(wait=got - before)
                before = got
                continue
            context = Context(
                tf.constant(self.frames, tf.float32),
                tf.constant(self._limits.frames, tf.float32),
                tf.constant(meter.mean_return(), tf.float32),
            )
            with self._whole:
                results, priorities, steps = self._update(batch, context)
                values = {name: float(value) for name, value in results.items()}
                if not math.isfinite(values["grad_norm"]):
                    raise NotFinite(self.updates, values)
                trained = clock()
                # Before the counts: a row that has the steps has their time, too.
                meter.add_times(wait=got - before, train=trained - got, rest=rest)
                self.updates += 1
                self.steps += int(steps)
            self._source.feedback(batch.key, priorities)
            self._actions = batch.unrolls.action
            self._server.publish(self.updates, self._layout.pack())
            for arrival in self._server.arrivals():
                meter.add_episodes(arrival.level, arrival.episodes)
            values["policy_lag"] = self.updates - 1 - float(np.mean(batch.version))
            values["queue_fill"] = int(self._server.queue.size()) / self._server.capacity
            meter.add(values)
            before = clock()
            rest = before - trained

    def _one_update(
        self, batch: Batch, context: Context
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor]:
        metrics, priorities = self._algorithm.update(batch, context, self._exchange)
        new = batch.unrolls.first[self._algorithm.unroll.overlap :]  # [T, B]
        steps = tf.reduce_sum(tf.cast(~new, tf.float32) * batch.weight)
        return metrics, priorities, steps

    def _reached(self) -> bool:
        """Whether a limit ends the run; `ended` says which."""
        limits = self._limits
        if self.frames >= limits.frames:
            self.ended = f"{limits.frames:,.0f} frames are reached"
        elif self._meter.mean_return() >= limits.episode_return:
            self.ended = f"the mean return has reached {limits.episode_return:g}"
        elif self.seconds >= limits.seconds:
            self.ended = f"{limits.seconds:g} seconds are over"
        return bool(self.ended)

    # -- the main thread

    def _row(self) -> dict[str, Any]:
        row = {
            "frames": self.frames,
            "steps": self.steps,
            "updates": self.updates,
            "seconds": round(self.seconds, 3),
            "messages_dropped": self._server.stale,  # had before, or meant for another process
            **self._meter.row(self.frames, self.steps),
        }
        try:
            self._log.write(row)
        except (OSError, tf.errors.OpError) as error:
            if self._writes:
                self._say(f"metrics cannot be written ({error}); training goes on")
            self._writes = False
        else:
            if not self._writes:
                self._say("metrics are written again")
            self._writes = True
        return row

    def _show_histograms(self) -> None:
        """Of the trained variables and of the actions in the last batch."""
        with self._whole:
            named = {f"variables/{v.name}": v.numpy() for v in self._algorithm.variables.trained}
        named["actions"] = np.asarray(self._actions)
        try:
            self._log.histograms(self.frames, named)
        except (OSError, tf.errors.OpError) as error:
            self._say(f"histograms could not be written ({error}); training goes on")

    def _save(self) -> None:
        begin = time.monotonic()
        try:
            with self._whole:
                counts = {"updates": self.updates, "steps": self.steps}
                self._checkpoints.save(counts | {"seconds": self.seconds})
        except Unwritable as error:
            if self.saved:
                self._say(f"checkpoints cannot be written ({error}); those before are kept")
            self.saved = False
        else:
            self.saved = True
            seconds = time.monotonic() - begin
            self._say(f"checkpoint at update {self.updates} ({seconds:.1f} s)")


class Limits:
    """Where a run ends, whichever comes first."""

    def __init__(self, config: Config, reward_threshold: float | None):
        self.frames = config.total_environment_frames or 50e6
        self.episode_return = config.stop_at_return
        if not config.total_environment_frames and math.isinf(config.stop_at_return):
            self.episode_return = math.inf if reward_threshold is None else reward_threshold
        self.seconds = config.max_seconds


class NotFinite(Exception):
    """A gradient that is not finite; it was applied nowhere."""

    def __init__(self, update: int, values: dict[str, float]):
        bad = ", ".join(f"{n} = {v}" for n, v in values.items() if not math.isfinite(v))
        super().__init__(
            f"update {update + 1} is not finite ({bad}); it was not applied, and the last "
            f"checkpoint is good. Lower --learning_rate or --gradients_clipping"
        )
