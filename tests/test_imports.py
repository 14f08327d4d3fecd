"""The modules of --import and those that installed packages offer, in every process of a run."""

import sys

import pytest
from cluster import FRONTEND
from processes import ROOT, free_port, run

ADDS = """
import gymnasium

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, [2])
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action):
        return self.observation_space.sample() * 0, 1.0, True, False, {}

gymnasium.register("Mine-v0", f"{__name__}:Mine")
"""
EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"))


@pytest.fixture
def here(tmp_path):
    """A folder with a module that registers an environment."""
    (tmp_path / "adds.py").write_text(ADDS)
    return tmp_path


def _install(folder, module):
    """Write what an installed package leaves in a folder of installed packages; return it."""
    about = folder / "installed" / "offering-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[impala_mm]\nmine = {module}\n")
    return str(about.parent)


@pytest.mark.slow
def test_every_process_of_a_run_imports_the_modules_and_so_does_who_plays_its_policy(here):
    flags = ("--level_name=Mine-v0", "--total_environment_frames=200", "--env_workers=2")
    flags += ("--num_envs=4", "--num_actors=1", "--check_env_secs=2", "--logdir=here")
    code, printed = run(*EXPERIMENT, "--import=adds", *flags, cwd=here)
    assert code == 0, printed
    (kept,) = (here / "here" / "source").glob("*/adds.py")
    assert kept.read_text() == (here / "adds.py").read_text()
    code, printed = run(*EXPERIMENT, "--mode=test", "--logdir=here", cwd=here)
    assert code == 0, printed
    (here / "adds.py").rename(here / "added.py")
    code, printed = run(*EXPERIMENT, "--mode=test", "--logdir=here", cwd=here)
    assert code == 2
    assert "the run's --import=adds: no module named 'adds' was found in" in printed
    code, printed = run(*EXPERIMENT, "--mode=test", "--logdir=here", "--import=added", cwd=here)
    assert code == 0, printed


@pytest.mark.slow
def test_an_installed_package_offers_its_module_by_an_entry_point(here):
    installed = _install(here, "adds")
    flags = ("--level_name=Mine-v0", "--validate", "--env_workers=2")
    code, printed = run(*EXPERIMENT, *flags, cwd=here, PYTHONPATH=installed)
    assert code == 0, printed
    (here / "adds.py").write_text("raise ValueError('too old')")
    code, printed = run(*EXPERIMENT, "--validate", cwd=here, PYTHONPATH=installed)
    assert code == 0, printed
    assert "warning: what the package offering adds is left out: adds was found at" in printed
    assert "ValueError: too old" in printed


def test_the_frontend_imports_modules_without_tensorflow(here):
    installed = _install(here, "adds")
    (here / "installed" / "tensorflow.py").write_text("raise ImportError('it is blocked')")
    (here / "also.py").write_text("import adds")
    (here / "workers.csv").write_text(
        f"job,ip,tf_port\nlearner,localhost,{free_port()}\nactor,localhost,\n"
    )
    rows = ("--workers_csv_path=workers.csv", "--dry_run", "--level_name=Mine-v0")
    rows += ("--replay=queue:0.5,ranked:0.5:100",)
    for command in (("--help",), rows):
        given = (*FRONTEND, "--import=also,sandbox.own_replay,sandbox.own_names", *command)
        code, printed = run(*given, cwd=here, PYTHONPATH=installed)
        assert code == 0, printed
    assert printed.count("--imports=also,sandbox.own_replay") == 2
