"""The commands whose learning curves this project publishes; `record.py` and `verify.py` run them.

Each command is `python experiment.py` with a preset or an algorithm, some flags and a seed. It
depends on no other configuration.
"""

import importlib.util
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.records.run_contents import drop_replaced, read_json_lines
from impala_mm.runtime import machine, provenance

ROOT = Path(__file__).resolve().parent.parent
REFERENCE_FOLDER = Path(__file__).resolve().parent / "reference"


class DocumentedRun(NamedTuple):
    """A documented command and the mean return that it must reach."""

    flags: list[str]
    goal: float  # mean unclipped return of the last 100 games
    random: float  # that of a policy that draws evenly among the allowed actions
    spaces: str  # what the environment shows and which actions it takes, in words
    needs: str = ""  # what to install besides this project, as pip reads it
    imports: str = ""  # the module by which an installed `needs` is recognised
    published: tuple[float, float] | None = None  # mean and deviation that CleanRL publishes
    published_steps: str = ""  # after how many steps, where this run has another number
    beside: str = ""  # the run whose curves this one's are drawn beside, in grey

    def is_possible(self) -> bool:
        """Return whether all packages that the command needs are installed."""
        return not self.imports or importlib.util.find_spec(self.imports) is not None


def _cartpole(algorithm: str, goal: float) -> DocumentedRun:
    """Return the run of an algorithm's defaults on CartPole."""
    size = "--total_environment_frames=500000"
    flags = [f"--algorithm={algorithm}", "--level_name=CartPole-v1", size]
    return DocumentedRun(flags, goal, random=21.6, spaces="numbers [4]; Discrete(2)")


def _run(preset: str, *flags: str, **known: Any) -> DocumentedRun:
    """Return the run of a preset, with more flags."""
    return DocumentedRun([f"--preset={preset}", *flags], **known)


_IMAGES = "images [84, 84, 4]; Discrete"
_MUJOCO = {"needs": "gymnasium[mujoco]", "imports": "mujoco"}
_MINIGRID = {"needs": "minigrid", "imports": "minigrid"}

# Every setting stands in impala_mm/presets/, or is its algorithm's default.
DOCUMENTED_RUNS = {
    # catch, CartPole-v1, Harvest, tic-tac-toe and InvertedPendulum-v5 stop at their own reward
    # threshold; tic-tac-toe may not reach it.
    "catch": _run("catch-impala", goal=0.9, random=-0.61, spaces="numbers [10, 5]; Discrete(3)"),
    "cartpole": _run("classic-impala", goal=475, random=21.77, spaces="numbers [4]; Discrete(2)"),
    # The agent must remember the first observation until the last step.
    "memory": _run("memory-impala", goal=0.95, random=0.5, spaces="numbers [4]; Discrete(2)"),
    # The run ends at a mean return of 20 (the maximum is 21), or after 8 million frames.
    "pong": _run(
        *("atari-impala", "--total_environment_frames=8000000", "--stop_at_return=20"),
        "--entropy_cost=0.003",
        goal=18,
        random=-20.7,
        spaces=f"{_IMAGES}(6)",
    ),
    "breakout": _run("breakout-impala", goal=200, random=1.7, spaces=f"{_IMAGES}(4)"),
    "harvest": _run(
        "harvest-impala", goal=13.5, random=0.57, spaces="numbers [4]; MultiDiscrete([3, 3])"
    ),
    "tictactoe": _run(
        "tictactoe-impala", goal=0.7, random=-0.01, spaces="numbers [9]; Discrete(9) with a mask"
    ),
    "pendulum": _run("pendulum-impala", goal=-200, random=-1192, spaces="numbers [3]; Box [1]"),
    # Learning values of actions, with replay. Pendulum's 100 games are all that the run plays.
    "dqn-cartpole": _run(
        *("classic-dqn", "--stop_at_return=475", "--num_actors=1"),
        goal=440,
        random=21.77,
        spaces="numbers [4]; Discrete(2)",
    ),
    "c51-cartpole": _run(
        *("classic-dqn", "--value_distribution=categorical", "--v_min=0", "--v_max=100"),
        *("--stop_at_return=475", "--num_actors=1"),
        goal=400,
        random=21.77,
        spaces="numbers [4]; Discrete(2)",
    ),
    "r2d2-memory": _run("memory-r2d2", goal=0.8, random=0.5, spaces="numbers [4]; Discrete(2)"),
    # The mean is that of all environments, of which a few explore; the policy is better.
    "r2d2-pong": _run(
        *("atari-r2d2", "--num_actors=1"), goal=10, random=-20.7, spaces=f"{_IMAGES}(6)"
    ),
    "sac-pendulum": _run("pendulum-sac", goal=-450, random=-1192, spaces="numbers [3]; Box [1]"),
    # The defaults of policy gradients without a preset.
    "a2c-cartpole": _cartpole("a2c", goal=475),
    "vpg-cartpole": _cartpole("vpg", goal=475),
    "awr-cartpole": _cartpole("awr", goal=400),
    "vmpo-cartpole": _cartpole("vmpo", goal=475),
    "taxi": _run(
        "taxi-impala", goal=5, random=-187, spaces="a choice among 500; Discrete(6) with a mask"
    ),
    # Environments of other packages.
    "minigrid": _run(
        "minigrid-impala",
        goal=0.9,
        random=0.17,
        spaces="an image [7, 7, 3], a direction and a mission of words; Discrete(7)",
        **_MINIGRID,
    ),
    "doorkey": _run(
        "doorkey-ppo",
        goal=0.9,
        random=0.02,
        spaces="an image [7, 7, 3]; Discrete(7)",
        **_MINIGRID,
    ),
    "highway": _run(
        "highway-ppo",
        goal=17,
        random=7.8,
        spaces="numbers [5, 5]; Discrete(5)",
        needs="highway-env",
        imports="highway_env",
    ),
    "lunarlander": _run(
        "lunarlander-ppo",
        goal=190,
        random=-181,
        spaces="numbers [8]; Discrete(4)",
        needs="gymnasium[box2d]",
        imports="Box2D",
    ),
    "invertedpendulum": _run(
        *("mujoco-impala", "--level_name=InvertedPendulum-v5", "--total_environment_frames=0"),
        goal=900,
        random=5.1,
        spaces="numbers [4]; Box [1]",
        **_MUJOCO,
    ),
    "hopper": _run(
        *("mujoco-impala", "--level_name=Hopper-v5"),
        goal=600,
        random=18,
        spaces="numbers [11]; Box [3]",
        **_MUJOCO,
    ),
    "halfcheetah": _run(
        *("mujoco-impala", "--level_name=HalfCheetah-v5"),
        goal=1000,
        random=-281,
        spaces="numbers [17]; Box [6]",
        **_MUJOCO,
    ),
    # With the results that CleanRL publishes for as many steps of the same levels:
    # https://docs.cleanrl.dev/rl-algorithms/ppo
    "ppo-halfcheetah": _run(
        "mujoco-ppo",
        goal=2500,
        random=-281,
        spaces="numbers [17]; Box [6]",
        published=(1443, 46),
        **_MUJOCO,
    ),
    # As many steps and optimizer steps of as many environments, divided between learners.
    "two-learners": _run(
        *("mujoco-ppo", "--num_learners=2", "--batch_size=8", "--minibatches=32"),
        goal=2500,
        random=-281,
        spaces="numbers [17]; Box [6]",
        beside="ppo-halfcheetah",
        **_MUJOCO,
    ),
    "four-learners": _run(
        *("mujoco-ppo", "--num_learners=4", "--batch_size=4", "--minibatches=32"),
        *("--num_actors=4", "--num_envs=4"),
        goal=2500,
        random=-281,
        spaces="numbers [17]; Box [6]",
        beside="ppo-halfcheetah",
        **_MUJOCO,
    ),
    "ppo-walker2d": _run(
        *("mujoco-ppo", "--level_name=Walker2d-v4"),
        goal=1716,
        random=1.9,
        spaces="numbers [17]; Box [6]",
        published=(2288, 572),
        **_MUJOCO,
    ),
    "ppo-hopper": _run(
        *("mujoco-ppo", "--level_name=Hopper-v4"),
        goal=2111,
        random=16.9,
        spaces="numbers [11]; Box [3]",
        published=(2383, 272),
        **_MUJOCO,
    ),
    "ppo-invertedpendulum": _run(
        *("mujoco-ppo", "--level_name=InvertedPendulum-v4"),
        goal=900,
        random=5.7,
        spaces="numbers [4]; Box [1]",
        published=(963, 22),
        **_MUJOCO,
    ),
    "ppo-cartpole": _run(
        "classic-ppo",
        goal=475,
        random=21.6,
        spaces="numbers [4]; Discrete(2)",
        published=(490, 6),
    ),
    "ppo-acrobot": _run(
        *("classic-ppo", "--level_name=Acrobot-v1"),
        goal=-90,
        random=-500,
        spaces="numbers [6]; Discrete(3)",
        published=(-86, 1),
    ),
    "ppo-pong": _run(
        *("atari-ppo", "--agent_name=ShallowConvAgent", "--total_environment_frames=8000000"),
        "--entropy_cost=0.005",
        goal=19,
        random=-20.7,
        spaces=f"{_IMAGES}(6)",
        published=(20.4, 0.2),
        published_steps="10M",
    ),
    "ppo-breakout": _run(
        *("atari-ppo", "--level_name=BreakoutNoFrameskip-v4", "--subtract_mean_image=false"),
        goal=300,
        random=1.7,
        spaces=f"{_IMAGES}(4)",
        published=(415, 28),
    ),
    "ppo-beamrider": _run(
        *("atari-ppo", "--agent_name=ShallowConvAgent", "--level_name=BeamRiderNoFrameskip-v4"),
        goal=1431,
        random=364,
        spaces=f"{_IMAGES}(9)",
        published=(1916, 485),
    ),
    # https://docs.cleanrl.dev/rl-algorithms/sac
    "sac-halfcheetah": _run(
        *("mujoco-sac", "--num_actors=1", "--intra_op_threads=2"),
        goal=8211,
        random=-281,
        spaces="numbers [17]; Box [6]",
        published=(9635, 1424),
        **_MUJOCO,
    ),
    "sac-hopper": _run(
        *("mujoco-sac", "--level_name=Hopper-v4", "--num_actors=1", "--intra_op_threads=2"),
        goal=1967,
        random=16.9,
        spaces="numbers [11]; Box [3]",
        published=(2310, 343),
        **_MUJOCO,
    ),
    "sac-walker2d": _run(
        *("mujoco-sac", "--level_name=Walker2d-v4", "--num_actors=1", "--intra_op_threads=2"),
        goal=2680,
        random=1.9,
        spaces="numbers [17]; Box [6]",
        published=(3591, 911),
        **_MUJOCO,
    ),
}


def full_command(name: str, seed: int, *more: str) -> list[str]:
    """Return the arguments of the command; pages and recorded files contain them, quoted."""
    flags = [*DOCUMENTED_RUNS[name].flags, f"--seed={seed}", *more]
    return ["python", "experiment.py", *flags]


def settings(name: str) -> Config:
    """Return the settings of a command."""
    return settings_of(["experiment.py", *DOCUMENTED_RUNS[name].flags])


def settings_of(arguments: list[str]) -> Config:
    """Return the settings that experiment.py has with these arguments; its name is the first."""
    (config,), _ = command_line.parse(arguments, "", Config)
    return config


def run_documented(name: str, seed: int, logdir: Path, *more: str) -> int:
    """Run the command, with its output on this terminal, and return its exit code."""
    arguments = full_command(name, seed, *more, f"--logdir={logdir}")
    print(f"$ {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, *arguments[1:]], cwd=ROOT, check=False).returncode


def read_references(name: str) -> list[dict]:
    """Read what was recorded of each seed of a command."""
    return [json.loads(p.read_text()) for p in sorted(REFERENCE_FOLDER.glob(f"{name}-[0-9]*.json"))]


def read_metrics(logdir: Path) -> list[dict]:
    """Read the rows of metrics.jsonl."""
    return read_json_lines(logdir / "metrics.jsonl")


def read_curve(logdir: Path) -> list[dict]:
    """Read the rows that have a mean return, but those that were replaced after a resume."""
    return [row for row in drop_replaced(read_metrics(logdir)) if "episode_return" in row]


def describe_machine() -> str:
    """Describe this machine in the words that recorded curves contain."""
    names = [use.name for use in machine.measure_gpus()]
    return f"{provenance.machine()}, {', '.join(names) or 'no GPU'}"
