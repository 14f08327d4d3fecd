"""Tests of the checker of chaos runs with fabricated files: each kind of violation is found."""

import itertools
import json

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.records import checkpoint
from tests.chaos import checker, evidence, rates

SECONDS = 0.5  # of an update
STEPS = 20  # of an unroll


class Files:
    """The files of a run with two learners and one environment for each; tests change them."""

    def __init__(self, folder):
        self.folder = folder
        self.sessions = {}  # by file: the updates of a learner process
        self.rows, self.checkpoints, self.left = [], {}, ""
        self._chains, self._now = itertools.count(1000), 0.0
        self._played = [0, 0]  # steps of each environment
        self._after = {0: (0, 0)}  # by number of updates, the newest: (chain, steps)
        self.events = [
            ["calm", 0.0, 30 * SECONDS, 30 * SECONDS, True],
            ["a kill", 31 * SECONDS, 32 * SECONDS, 32 * SECONDS, False],
        ]

    def train(self, begin, end):
        """Let two new learner processes make updates after update `begin` until `end`."""
        names = [f"learner{rank + 1}/trained/{self._now}.jsonl" for rank in range(2)]
        self.sessions |= {name: [] for name in names}
        before, steps = self._after[begin]
        for update in range(begin + 1, end + 1):
            self._now += SECONDS
            after = next(self._chains)
            line = {"time": self._now, "learners": 2, "update": update}
            line |= {"before": before, "after": after}
            for rank, name in enumerate(names):
                column = {"instance": 7 + rank, "first": self._played[rank] + 1, "steps": STEPS}
                self._played[rank] += STEPS
                column |= {"last": self._played[rank], "version": update - 1, "whole": True}
                self.sessions[name].append(line | {"rank": rank, "columns": [column]})
            before, steps = after, steps + 2 * STEPS
            self._after[update] = before, steps
            self.rows.append({"updates": update, "steps": steps, "frames": float(steps)})

    @property
    def learners(self):
        """The updates of each learner process: two of the first start, two of the second."""
        return list(self.sessions.values())

    def save(self, update):
        """Save a checkpoint after an update."""
        chain, steps = self._after[update]
        self.checkpoints[update] = (
            {"updates": update, "steps": steps, "frames": float(steps)},
            chain,
        )

    def check(self):
        """Write all files, and return what the checker finds."""
        for name, lines in self.sessions.items():
            self._write(name, lines)
        self._write("learner1/run/metrics.jsonl", self.rows)
        events = [evidence.Event(*event)._asdict() for event in self.events]
        self._write("events.jsonl", events)
        (self.folder / "left.txt").write_text(self.left)
        for update, (about, chain) in self.checkpoints.items():
            work = self.folder / "learner1" / "run" / "checkpoints" / "saving"
            work.mkdir(parents=True)
            recorded = tf.Variable([evidence.MARK, update, chain], dtype=tf.int64)
            weights = tf.Variable(np.ones(100, np.float32))
            tf.train.Checkpoint(carried=[recorded], trained=[weights]).write(
                str(work / "variables")
            )
            checkpoint.finish(work, self.checkpoint(update), about)
        return checker.check(self.folder)

    def checkpoint(self, update):
        return self.folder / "learner1" / "run" / "checkpoints" / f"{update:010}"

    def _write(self, name, lines):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def files(tmp_path):
    """Return a run whose learners went back from update 40 to the checkpoint at update 30."""
    made = Files(tmp_path)
    made.train(0, 40)
    made.train(30, 60)
    made.save(30)
    made.save(60)
    return made


def _only(findings, *words):
    """Check that all findings contain these words, and that there is one."""
    assert findings
    for finding in findings:
        assert all(word in finding for word in words), findings


def test_a_run_that_went_back_to_a_checkpoint_is_right(files):
    """What was trained after the checkpoint counts only in lost updates, and may be used again.

    A row may have been read before the last update's steps were added.
    """
    lost, again = files.learners[0], files.learners[2]
    again[0]["columns"] = [lost[35]["columns"][0] | {"version": 30}]
    files.rows[50] |= {name: files.rows[49][name] for name in ("steps", "frames")}
    assert files.check() == []
    assert checker.summary(files.folder).startswith(
        "checked 70 updates of 4 learner processes, 70 rows and 2 checkpoints; "
    )


def test_an_unroll_that_two_batches_of_one_history_hold_is_found(files):
    before, after = files.learners[0], files.learners[3]
    after[20]["columns"] = [before[10]["columns"][0] | {"version": 30}]
    _only(
        files.check(), "steps 201 to 220 of environment 7 were trained twice, in updates 11 and 51"
    )


@pytest.mark.parametrize(
    ("learner", "update", "change", "words"),
    [
        (0, 10, {"first": 200}, "steps 200 to 200 of environment 7 were trained twice"),
        (0, 3, {"whole": False}, "an unroll of update 4 mixes environments or skips steps"),
        (2, 10, {"version": 45}, "update 41 of a learner that began with update 31"),
        (2, 10, {"version": 35}, "environment 7 played version 35 from step "),
    ],
)
def test_a_wrong_unroll_is_found(files, learner, update, change, words):
    files.learners[learner][update]["columns"][0] |= change
    assert any(words in finding for finding in files.check())


def test_wrong_counts_of_rows_and_updates_are_found(files):
    files.rows[50] |= {"steps": 1700, "frames": 1700.0}
    files.learners[0][20]["update"] += 1
    files.learners[3].pop()
    findings = "\n".join(files.check())
    assert "metrics on learner1: 1700 frames, 1700 steps after 41 updates" in findings
    assert "learner 0: update 22 follows update 20" in findings
    assert "learners [0] of 2 recorded update 60" in findings


def test_checkpoints_that_are_damaged_or_hold_something_else_than_they_say_are_found(files):
    about, chain = files.checkpoints[60]
    files.checkpoints[60] = about | {"updates": 59}, chain
    assert any("says update 59, but it holds 60 updates" in each for each in files.check())
    data = next(files.checkpoint(30).glob("variables.data*"))
    data.write_bytes(data.read_bytes()[:-1])
    assert any("0000000030 cannot be loaded: " in each for each in checker.check(files.folder))


def test_tracebacks_and_what_is_left_are_found(files):
    files.left = "actor1: python experiment.py\n"
    log = files.folder / "laptop" / "run" / "actor-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("Traceback (most recent call last):\n  File\nValueError: bad\n[actor 0] plays\n")
    traceback, left = files.check()
    assert traceback.endswith("laptop/run/actor-0.log has a traceback: ValueError: bad")
    assert left == "left: actor1: python experiment.py"


def test_a_pause_outside_of_disturbances_is_found(files):
    files.events[1][2:4] = 41 * SECONDS, 41 * SECONDS
    for session in files.learners[2:]:
        for update in session:
            update["time"] += 2 * rates.LONGEST_PAUSE
    files.events.append(["the end", 150.0, 150.0, 150.0, True])
    findings = files.check()
    assert any("no update for 6" in each and "after: a kill" in each for each in findings)
