"""Tests of the checker of chaos runs with fabricated files: each kind of violation is found."""

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from impala_mm.records import checkpoint
from tests.chaos import checker, evidence, numbered, rates
from tests.chaos.subject import Controllers

SECONDS = 0.5  # of an update
STEPS = 20  # of an unroll


class Files:
    """The files of a run with two learners and one environment for each; tests change them."""

    def __init__(self, folder):
        self.folder = folder
        self.sessions = {}  # by file: the updates of a learner process
        self.rows, self.checkpoints, self.left, self.exited = [], {}, "", ""
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

    def save(self, update, **changes):
        """Save a checkpoint after an update."""
        chain, steps = self._after[update]
        about = {"updates": update, "steps": steps, "frames": float(steps)}
        self.checkpoints[update] = (about | changes, chain)

    def check(self):
        """Write all files, and return what the checker finds."""
        for name, lines in self.sessions.items():
            self._write(name, lines)
        self._write("learner1/run/metrics.jsonl", self.rows)
        events = [evidence.Event(*event)._asdict() for event in self.events]
        self._write("events.jsonl", events)
        (self.folder / "left.txt").write_text(self.left)
        (self.folder / "exited.txt").write_text(self.exited)
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
    assert files.check() == []
    assert checker.summary(files.folder).startswith(
        "checked 70 updates of 4 learner processes, 70 rows and 2 checkpoints; "
    )


def test_an_unroll_that_was_trained_after_the_checkpoint_counts_only_in_lost_updates(files):
    lost, again = files.learners[0], files.learners[2]
    again[0]["columns"] = [lost[35]["columns"][0] | {"version": 30}]
    assert files.check() == []


@pytest.mark.parametrize("learner", [0, 1])
def test_an_unroll_that_two_batches_of_one_history_hold_is_found(files, learner):
    before, after = files.learners[0], files.learners[2 + learner]
    after[20]["columns"] = [before[10]["columns"][0] | {"version": 30}]
    _only(
        files.check(), "steps 201 to 220 of environment 7 were trained twice, in updates 11 and 51"
    )


def test_unrolls_that_overlap_in_one_step_are_found(files):
    files.learners[0][10]["columns"][0]["first"] -= 1
    _only(
        files.check(), "steps 200 to 200 of environment 7 were trained twice, in updates 10 and 11"
    )


def test_an_unroll_twice_in_a_batch_is_found(files):
    line = files.learners[2][0]
    line["columns"].append(line["columns"][0] | {"steps": 0})
    _only(files.check(), "were trained twice, in updates 31 and 31")


def test_an_unroll_of_two_environments_is_found(files):
    files.learners[0][3]["columns"][0]["whole"] = False
    _only(files.check(), "an unroll of update 4 mixes environments or skips steps")


def test_a_checkpoint_that_counts_lost_frames_is_found(files):
    files.save(60, steps=60 * 2 * STEPS + 10, frames=60 * 2 * STEPS + 10.0)
    _only(files.check(), "counts 2410 frames of 2410 steps", "made with 2400")


def test_a_row_that_counts_lost_frames_is_found(files):
    files.rows[50] |= {"steps": 1700, "frames": 1700.0}
    _only(files.check(), "metrics on learner1: 1700 frames, 1700 steps after 41 updates")


def test_a_row_whose_frames_are_not_its_steps_is_found(files):
    files.rows[50]["frames"] *= 2
    _only(files.check(), "metrics on learner1: 3280 frames, 1640 steps")


def test_a_row_may_have_been_read_before_the_last_updates_steps_were_added(files):
    files.rows[50] |= {name: files.rows[49][name] for name in ("steps", "frames")}
    assert files.check() == []


def test_an_update_that_is_left_out_or_repeated_is_found(files):
    files.learners[0][20]["update"] += 1
    files.learners[3].insert(5, files.learners[3][5])
    findings = files.check()
    assert "learner 0: update 22 follows update 20" in findings
    assert "learner 1: update 36 follows update 36" in findings


def test_learners_that_begin_with_an_unknown_state_are_found(files):
    for session in files.learners[2:]:
        session[0]["before"] = 5
    findings = files.check()
    assert "learner 0 began update 31 with a state nobody has made" in findings
    assert any("0000000060 holds updates that no learner has recorded" in each for each in findings)


def test_a_checkpoint_of_updates_that_nobody_recorded_is_found(files):
    files.checkpoints[60] = files.checkpoints[60][0], 17
    _only(files.check(), "0000000060 holds updates that no learner has recorded")


def test_a_checkpoint_that_says_another_update_than_its_weights_is_found(files):
    files.checkpoints[60][0]["updates"] = 59
    _only(files.check(), "0000000060 says update 59, but it holds 60 updates")


def test_a_learner_whose_update_is_not_that_of_the_other_is_found(files):
    files.learners[3].pop()
    findings = files.check()
    assert any("learners [0] of 2 recorded update 60" in each for each in findings)


@pytest.mark.parametrize(("version", "words"), [(45, "policy version 45"), (29, "version 29")])
def test_an_unroll_of_a_policy_of_lost_updates_is_found(files, version, words):
    """The learners began again with version 30, and version 45 was yet to come."""
    files.learners[2][10]["columns"][0]["version"] = version
    assert any(words in finding for finding in files.check())


def test_an_environment_that_goes_back_to_an_older_policy_is_found(files):
    files.learners[2][10]["columns"][0]["version"] = 35
    _only(files.check(), "environment 7 played version 35 from step ", "after version 39")


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "no description"])
def test_a_damaged_checkpoint_is_found(files, damage):
    files.check()
    path = files.checkpoint(30)
    data = next(path.glob("variables.data*"))
    content = bytearray(data.read_bytes())
    if damage == "cut":
        data.write_bytes(content[:-1])
    elif damage == "changed":
        content[40] ^= 1
        data.write_bytes(content)
    else:
        (data if damage == "missing" else path / "about.json").unlink()
    _only(checker.check(files.folder), "0000000030 cannot be loaded: ")


def test_a_checkpoint_that_was_put_aside_is_found(files):
    files.check()
    files.checkpoint(30).rename(files.checkpoint(30).with_name("damaged-0000000030"))
    _only(checker.check(files.folder), "damaged-0000000030")


def test_what_is_left_on_a_host_is_found(files):
    files.left = "actor1: python experiment.py\n"
    assert files.check() == ["left: actor1: python experiment.py"]


def test_a_controller_that_exited_by_itself_is_found(files):
    files.exited = "the controller (process 7) exited by itself\n"
    assert files.check() == ["the controller (process 7) exited by itself"]


def test_a_controller_has_exited_by_itself_if_nobody_has_ended_it():
    living, killed = [1, 2, 3], {2}
    laptop = SimpleNamespace(up=True, pids=lambda words: living)
    seen = Controllers(SimpleNamespace(laptop=laptop), killed)
    assert seen.look()
    living.remove(2)  # it was killed
    seen.look()
    assert seen.exited == []
    living.remove(3)
    assert seen.look()
    assert seen.exited == ["the controller (process 3) exited by itself"]
    killed.add(1)
    laptop.up = False
    assert not seen.look()
    assert len(seen.exited) == 1


def test_a_traceback_in_a_log_is_found(files):
    files.check()
    log = files.folder / "laptop" / "run" / "actor-0.log"
    log.parent.mkdir(parents=True)
    log.write_text(
        "[actor 0] joined\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    g()\nValueError: bad\n[actor 0] plays\n'
    )
    _only(checker.check(files.folder), "laptop/run/actor-0.log has a traceback: ValueError: bad")


def test_a_run_that_is_slower_after_a_disturbance_is_found(files):
    for session in files.learners[2:]:
        for number, update in enumerate(session):
            update["time"] += number * SECONDS
    files.events.append(["the end", 100 * SECONDS, 100 * SECONDS, 100 * SECONDS, True])
    _only(files.check(), "% of the undisturbed 80")


def test_a_pause_outside_of_disturbances_is_found(files):
    files.events[1][2:4] = 41 * SECONDS, 41 * SECONDS
    for session in files.learners[2:]:
        for update in session:
            update["time"] += 2 * rates.LONGEST_PAUSE
    files.events.append(["the end", 150.0, 150.0, 150.0, True])
    findings = files.check()
    assert any("no update for 6" in each and "after: a kill" in each for each in findings)


def test_an_unmeasured_or_unsaved_run_is_found(files):
    files.rows, files.checkpoints, files.events = [], {}, files.events[1:]
    assert files.check() == [
        "no step was trained on while the run was left alone",
        "no host has a row of metrics",
        "no checkpoint is left",
    ]


@pytest.mark.parametrize("cut", ['{"time": 1, "ra', '{"time": 1, "columns": [{"steps": 4}'])
def test_what_a_killed_learner_was_writing_is_left_out(files, cut):
    files.check()
    path = files.folder / next(iter(files.sessions))
    path.write_text(path.read_text() + cut)
    assert checker.check(files.folder) == []


def test_observations_identify_their_environment_and_step():
    one, other = numbered.Numbered(), numbered.Numbered()
    seen = [one.reset(seed=1)[0], one.step(0)[0], other.reset(seed=1)[0]]
    assert all(numbered.Numbered.observation_space.contains(each) for each in seen)
    instances, counts = numbered.decode(np.stack(seen))
    assert instances[0] == instances[1] != instances[2]
    assert counts.tolist() == [0, 1, 0]
