"""Training from Python, in processes of their own: by a script, and when the script is killed."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from deadlines import Deadline
from processes import ROOT, await_end_in

import impala_mm
from impala_mm import errors
from impala_mm.from_python import run as runs
from impala_mm.from_python.run import Output

_LONG = 280  # seconds


class Sign(gymnasium.Env):
    """Ten steps; a reward of 1 for telling the sign of a number."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=10):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.length
        return self._observation(), {}

    def _observation(self):
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen

    def step(self, action):
        reward, self.left = float((self.seen[0] > 0) == action), self.left - 1
        return self._observation(), reward, self.left == 0, False, {}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    for run in list(runs._RUNNING):
        if run.is_running:
            run.stop(save=False)


def test_the_names_are_those_that_a_user_calls():
    assert sorted(dir(impala_mm)) == [
        "__version__", "errors", "evaluate", "experiment", "launch", "load_policy", "train",
    ]  # fmt: skip
    code = "import impala_mm, sys; impala_mm.train; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_first_error_is_found_among_what_was_printed():
    output = Output(False)
    output.read(iter(["[learner] writes to runs/x\n", "warning: slow\n", "error: no such level\n"]))
    assert output.first_error() == "no such level"
    output = Output(False)
    output.read(iter([
        "[supervisor] actor-1 failed: killed; it is restarted (last line: none)\n",
        "[learner] Traceback (most recent call last):\n",
    ]))  # fmt: skip
    assert output.first_error() == "Traceback (most recent call last):", "the actor goes on"
    output = Output(False)
    output.read(
        iter(["Traceback (most recent call last):\n", '  File "a.py"\n', "ValueError: b\n", "c\n"])
    )
    assert output.first_error().endswith("ValueError: b")
    output = Output(False)
    output.read(iter(["Traceback (most\n", '  File "a.py"\n', "ValueError: b\n", "error: c\n"]))
    assert output.first_error() == 'c\nTraceback (most\n  File "a.py"\nValueError: b'


def test_progress_is_one_line_on_a_screen_and_all_lines_in_a_file(capsys, monkeypatch):
    shown = (
        "[learner] writes to r",
        "[learner] 10 frames | 1/s",
        "[learner] 20 frames | 1/s",
        "end",
    )
    lines = [f"{line}\n" for line in shown]
    Output(True).read(iter(lines))
    assert capsys.readouterr().out == "".join(lines)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    Output(True).read(iter(lines))
    assert capsys.readouterr().out == (
        "[learner] writes to r\n\r[learner] 10 frames | 1/s\r[learner] 20 frames | 1/s\nend\n"
    )


@pytest.mark.slow
def test_a_class_with_arguments_and_a_wrapper_is_trained_tested_and_resumed(tmp_path):
    settings = {"num_actors": 1, "logdir": tmp_path / "run", "progress": False}
    scale = functools.partial(gymnasium.wrappers.TimeLimit, max_episode_steps=6)
    run = impala_mm.train(
        Sign, wrappers=[scale], env_kwargs={"length": 8}, stop_at_return=5.5, **settings
    )
    assert run.is_running
    assert run.logdir == tmp_path / "run"
    run.wait(_LONG)
    returns = run.metrics()["episode_return"]
    assert 5.5 <= list(returns)[-1] <= 6, "six steps by the wrapper, of eight by the arguments"
    policy = run.policy()
    assert [policy(np.float32([x, 0])) for x in (0.9, -0.9)] == [1, 0]
    played = impala_mm.evaluate(run, num_episodes=5)
    assert set(played.lengths) == {6}
    with pytest.raises(errors.BadCheckpoint, match="does not exist"):
        impala_mm.load_policy(tmp_path / "absent")


@pytest.mark.slow
def test_makers_of_one_name_are_all_trained_on_and_a_run_may_be_moved(tmp_path):
    makers = [functools.partial(Sign, length=4), functools.partial(Sign, 7)]
    settings = {"num_actors": 2, "logdir": tmp_path / "run", "progress": False}
    run = impala_mm.train(makers, max_seconds=8, **settings).wait(_LONG)
    assert {path.name for path in run.logdir.glob("*.environment")} == {
        "Sign.environment", "Sign-1.environment",
    }  # fmt: skip
    (tmp_path / "run").rename(tmp_path / "moved")
    names = impala_mm.load_policy(tmp_path / "moved").levels
    assert [Path(name).parent.name for name in names] == ["moved", "moved"]
    for name, length in zip(names, (4, 7), strict=True):
        assert set(impala_mm.evaluate(tmp_path / "moved", 3, name).lengths) == {length}
    impala_mm.load_policy(tmp_path / "moved").save(tmp_path / "saved")
    (tmp_path / "moved").rename(tmp_path / "elsewhere")
    assert len(impala_mm.load_policy(tmp_path / "saved").levels) == 2


COUNTS = """
import signal, sys, time
seen = []
signal.signal(signal.SIGINT, lambda *_: seen.append(1))
print("ready", flush=True)
while len(seen) < 2:
    time.sleep(0.01)
sys.exit(130)
"""


def test_stopping_without_saving_is_a_second_interrupt(tmp_path):
    """Two equal signals that follow each other at once would count as one."""
    (tmp_path / "program.py").write_text(COUNTS)
    run = runs.Run(tmp_path / "program.py", [], tmp_path, progress=False)
    while run.output != ["ready"]:
        time.sleep(0.01)
    run.stop(save=False)
    assert run.wait() is run


def test_a_run_that_is_stopped_while_it_starts_has_no_error(tmp_path):
    """A notebook's server in the background ignores interrupts, and so do its kernels."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    (tmp_path / "program.py").write_text("import time\ntime.sleep(100)\n")
    try:
        run = runs.Run(tmp_path / "program.py", [], tmp_path, progress=False)
    finally:
        signal.signal(signal.SIGINT, before)
    began = time.monotonic()
    time.sleep(0.5)
    run.stop()
    assert run.wait(_LONG) is run
    assert time.monotonic() - began < 90, "it did not sleep to its end"


@pytest.mark.slow
def test_stopping_saves_and_the_same_folder_goes_on(tmp_path):
    settings = {"num_actors": 1, "logdir": tmp_path / "run", "progress": False}
    run = impala_mm.train("catch", stop_at_return=2, **settings)
    _await_frames(run)
    with pytest.raises(TimeoutError, match="the run has not ended"):
        run.wait(0.1)
    with pytest.raises(errors.BadSettings, match="is writing to it"):
        impala_mm.train("catch", **settings).wait(_LONG)
    run.stop()
    assert not run.is_running
    run.wait()  # it ended as it was asked to
    frames = [*run.metrics()["frames"]][-1]
    again = impala_mm.train("catch", stop_at_return=2, **settings)
    _await_frames(again, frames)
    again.stop()
    assert "resumed at" in "\n".join(again.output)


def _read_to_the_end(script, kills):
    """Return what a script and its run print; kill it, if asked to, once its run plays."""
    printed = []
    for line in script.stdout:
        printed.append(line)
        if line == "plays\n" and kills:
            script.kill()
    return "".join(printed)  # the last process that has the pipe is gone


SCRIPT = """
import impala_mm, sys, time
run = impala_mm.train("catch", num_actors=1, logdir="run", stop_at_return=2)
while not [*run.metrics().get("frames", [0])][-1]:
    time.sleep(0.2)
print("plays", flush=True)
{then}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "code"), [("time.sleep(600)", -9), ("", 0)], ids=["killed", "ended"]
)
def test_the_run_is_saved_and_ends_with_the_script(tmp_path, then, code):
    """test_kernels.py interrupts one."""
    (tmp_path / "script.py").write_text(SCRIPT.format(then=then))
    script = subprocess.Popen(
        [sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    printed = _read_to_the_end(script, code == -9)
    assert script.wait(_LONG) == code, printed
    await_end_in(tmp_path)
    assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*")), printed


LAUNCH = """
import impala_mm, sys, time
run = impala_mm.launch("w.csv", "catch", stop_at_return=2, logdir="run", tmux_sess=sys.argv[1])
while run.is_running and not [*run.metrics().get("frames", [0])][-1]:
    time.sleep(0.2)
print("plays", flush=True)
{then}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("then", "kills"), [("run.stop(); run.wait()", False), ("time.sleep(600)", True)]
)
def test_a_clusters_run_is_saved_and_stopped_with_the_script(tmp_path, then, kills):
    (tmp_path / "w.csv").write_text(
        "job,ip,tf_port,count\nlearner,localhost,,\nactor,localhost,,2\n"
    )
    (tmp_path / "script.py").write_text(LAUNCH.format(then=then))
    own = {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(tmp_path), "TMUX_TMPDIR": str(tmp_path)}
    script = subprocess.Popen(
        [sys.executable, "script.py", f"py{os.getpid()}"], cwd=tmp_path, env=os.environ | own,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    printed = _read_to_the_end(script, kills)
    assert script.wait(_LONG) == (-9 if kills else 0), printed
    try:
        await_end_in(tmp_path)
    finally:  # windows of a run that has ended are kept
        subprocess.run(["tmux", "kill-server"], env=os.environ | own, check=True)
    assert list((tmp_path / "run" / "checkpoints").glob("[0-9]*")), printed


def _await_frames(run, more_than=0):
    """Wait until the run has trained on more frames than these."""
    deadline = Deadline(60)
    while [*run.metrics().get("frames", [0])][-1] <= more_than:
        assert run.is_running, run.output
        assert not deadline.is_over(), run.output
        time.sleep(0.2)
