"""SAC as a user's own algorithm, in a folder outside of the project, from start to end."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from processes import EXPERIMENT, ROOT, Process, free_port, needs_horovod
from processes import run as run_in
from rows import read_rows

pytestmark = pytest.mark.slow
SAC = (
    "--algorithm=my.sac", "--level_name=Pendulum-v1", "--num_actors=1", "--num_envs=2",
    "--batch_size=2", "--unroll_length=8", "--random_steps=1000", "--mlp_sizes=64,64",
    "--learning_rate=0.001", "--critic_rate=0.001", "--replay_save",
)  # fmt: skip
TWO = ("--num_learners=2", "--check_sync_every=20")


class Training(Process):
    """A run that is started in the user's folder, `run` in it."""

    def __init__(self, folder, *flags):
        self._folder = folder
        address = f"--learner_hosts=127.0.0.1:{free_port()}"
        super().__init__(*EXPERIMENT, address, f"--logdir={folder / 'run'}", *flags)

    def begun(self, command, env, **how):
        return subprocess.Popen(command, cwd=self._folder, env=None, **how)

    def end(self, seconds=400):
        """Wait for the end, which the run reaches by itself."""
        assert self.process.wait(seconds) == 0, self.printed()

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)
        assert self.wait(60) == 130, self.printed()


@pytest.fixture
def here(tmp_path):
    """The user's folder with their algorithms; it is the current folder of what they start."""
    (tmp_path / "my").mkdir()
    built_in = ROOT / "impala_mm" / "algorithms" / "sac"
    algorithm = (built_in / "algorithm.py").read_text() + "\n\nmake = SAC\n"
    mine = algorithm.replace("impala_mm.algorithms.sac.settings", "my.sac_settings")
    (tmp_path / "my" / "sac.py").write_text(mine)
    settings = (built_in / "settings.py").read_text() + "\n\nSettings = SACSettings\n"
    (tmp_path / "my" / "sac_settings.py").write_text(settings)
    return tmp_path


def _run(here, *flags, **env):
    return run_in(*EXPERIMENT, f"--logdir={here / 'run'}", *flags, cwd=here, **env)


def _numbers(here):
    """Return the numbers of the newest checkpoint's carried variables that are scalars."""
    newest = max((here / "run" / "checkpoints").iterdir())
    reader = tf.train.load_checkpoint(str(newest / "variables"))
    shapes = reader.get_variable_to_shape_map()
    names = [name for name, shape in shapes.items() if name.startswith("carried/") and not shape]
    return sorted(float(reader.get_tensor(name)) for name in names)


def _tested_return(here):
    code, printed = _run(here, "--mode=test", "--deterministic")
    assert code == 0, printed
    return float(re.search(r"\nreturn +(-?[\d.]+)", printed)[1])


def _check_export(here):
    code, printed = _run(here, "--mode=export")
    assert code == 0, printed
    folder = here / "run" / "export"
    code, printed = run_in(sys.executable, "example.py", cwd=folder)
    assert code == 0, printed
    return tf.saved_model.load(str(folder)).signatures["serving_default"]


def _check_in_sync(rows):
    assert rows[-1]["sync_checks"] > 0
    assert rows[-1]["sync_repairs"] == 0


def test_sac_learns_pendulum_and_is_resumed_with_its_replay_tested_and_exported(here):
    run = Training(here, *SAC, "--total_environment_frames=1e9")
    run.until(r"\] \d+,\d\d\d frames", 300)
    run.interrupt()
    before = len(read_rows(here / "run"))
    held, kept = _replay(here), read_rows(here / "run")[-1]
    assert held >= kept["frames"] // 8 > 100
    total = int(kept["frames"]) + 6000
    resumed = Training(here, *SAC, "--inference=learner", f"--total_environment_frames={total}")
    resumed.end()
    rows = read_rows(here / "run")[before:]
    assert held + (rows[-1]["frames"] - kept["frames"]) // 8 <= _replay(here) < 1.1 * total / 8
    shares = [row["replay_share"] for row in rows if "replay_share" in row]
    assert np.median(shares) == pytest.approx(1 - 16 / (16 * 256), abs=0.001), (
        "the last row has few updates"
    )
    assert 16 * rows[-1]["updates"] in _numbers(here), "of each optimizer"
    assert np.ptp([row["temperature"] for row in rows if "temperature" in row]) > 0.02, (
        "it is learnt"
    )
    assert _tested_return(here) > -400, "random actions return -1200"
    act = _check_export(here)
    action = act(
        **{name: tf.zeros([1, *spec.shape[1:]], spec.dtype) for name, spec in _inputs(act).items()}
    )["action"]
    assert np.abs(action).max() <= 2


def _replay(here):
    """Return the number of unrolls that the newest saved replay has received."""
    newest = max((here / "run" / "own" / "learner-0").iterdir())
    return int(np.load(newest / "source" / "state.npz")["added"])


def _inputs(act):
    return act.structured_input_signature[1]


@needs_horovod
def test_sac_trains_with_two_learners_each_with_its_replay(here, monkeypatch):
    """The module is found in PYTHONPATH, and not in the current folder."""
    (here / "elsewhere").mkdir()
    (here / "my").rename(here / "elsewhere" / "my")
    monkeypatch.setenv("PYTHONPATH", str(here / "elsewhere"))
    flags = (*SAC, *TWO, "--num_actors=2", "--total_environment_frames=4000")
    Training(here, *flags).end()
    rows = read_rows(here / "run")
    _check_in_sync(rows)
    saved = {path.parent.name for path in (here / "run" / "own").glob("learner-*/*")}
    assert saved == {"learner-0", "learner-1"}
    assert _tested_return(here) > -900


def test_sac_refuses_actions_that_are_no_box_in_a_sentence(here):
    code, printed = _run(here, SAC[0], "--level_name=CartPole-v1", "--validate")
    assert code == 2
    assert (
        "error: --algorithm=my.sac: SAC chooses numbers (Box), and CartPole-v1 takes one of 2"
        in (printed)
    )
    assert "Traceback" not in printed
