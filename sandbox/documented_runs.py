"""The commands whose learning curves this project publishes; `record.py` and `verify.py` run them.

Each command is `python experiment.py` with the flags below and a seed. It depends on no other
configuration.
"""

import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.records.json_lines import read_json_lines
from impala_mm.runtime import provenance

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

    def is_possible(self) -> bool:
        """Return whether all packages that the command needs are installed."""
        return not self.imports or importlib.util.find_spec(self.imports) is not None


DOCUMENTED_RUNS = {
    # catch and CartPole-v1 stop at their own reward threshold.
    "catch": DocumentedRun(["--level_name=catch"], 0.9, -0.61, "numbers [10, 5]; Discrete(3)"),
    "cartpole": DocumentedRun(["--level_name=CartPole-v1"], 475, 21.77, "numbers [4]; Discrete(2)"),
    # The agent must remember the first observation until the last step.
    "memory": DocumentedRun(
        ["--level_name=memory", "--agent_name=MLPLSTMAgent", "--stop_at_return=0.96"],
        0.95,
        0.5,
        "numbers [4]; Discrete(2)",
    ),
    # The defaults; the run ends at a mean return of 20 (the maximum is 21) or after an hour.
    "pong": DocumentedRun(
        ["--level_name=PongNoFrameskip-v4", "--stop_at_return=20", "--max_seconds=3600"],
        18,
        -20.7,
        "images [84, 84, 4]; Discrete(6)",
    ),
    "breakout": DocumentedRun(  # the predecessor's flags, for 9 million steps
        [
            "--level_name=BreakoutNoFrameskip-v4",
            "--batch_size=32",
            "--unroll_length=20",
            "--entropy_cost=0.01",
            "--learning_rate=0.0006",
            "--reward_clipping=abs_one",
            "--gradients_clipping=40",
            "--total_environment_frames=36000000",
        ],
        30,
        1.7,
        "images [84, 84, 4]; Discrete(4)",
    ),
    # Harvest and tic-tac-toe stop at their own reward threshold; the latter may not reach it.
    "harvest": DocumentedRun(
        ["--level_name=sandbox.small_games:Harvest-v0", "--discounting=0.9"],
        13.5,
        0.57,
        "numbers [4]; MultiDiscrete([3, 3])",
    ),
    "tictactoe": DocumentedRun(
        ["--level_name=sandbox.small_games:TicTacToe-v0", "--max_seconds=400"],
        0.7,
        -0.01,
        "numbers [9]; Discrete(9) with a mask",
    ),
    "pendulum": DocumentedRun(
        [
            "--level_name=Pendulum-v1",
            "--discounting=0.9",
            "--learning_rate=0.002",
            "--unroll_length=10",
            "--total_environment_frames=800000",
            "--stop_at_return=-180",
        ],
        -200,
        -1192,
        "numbers [3]; Box [1]",
    ),
    "taxi": DocumentedRun(
        [
            "--level_name=Taxi-v4",
            "--normalize_rewards",
            "--discounting=0.95",
            "--learning_rate=0.002",
            "--entropy_cost=0.01",
            "--total_environment_frames=1000000",
            "--stop_at_return=7",
        ],
        5,
        -187,
        "a choice among 500; Discrete(6) with a mask",
    ),
    # Environments of other packages.
    "minigrid": DocumentedRun(
        [
            "--level_name=minigrid:MiniGrid-Empty-5x5-v0",
            "--env_wrappers=minigrid.wrappers:DictObservationSpaceWrapper"
            '{"max_words_in_mission": 12}',
            "--stop_at_return=0.94",
        ],
        0.9,
        0.17,
        "an image [7, 7, 3], a direction and a mission of words; Discrete(7)",
        needs="minigrid",
        imports="minigrid",
    ),
    "doorkey": DocumentedRun(
        [
            "--algorithm=ppo",
            "--level_name=minigrid:MiniGrid-DoorKey-5x5-v0",
            "--env_wrappers=minigrid.wrappers:ImgObsWrapper",
            "--entropy_cost=0.01",
            "--learning_rate=0.001",
            "--total_environment_frames=500000",
            "--stop_at_return=0.93",
        ],
        0.9,
        0.02,
        "an image [7, 7, 3]; Discrete(7)",
        needs="minigrid",
        imports="minigrid",
    ),
    # The flags of highway-env's own example of PPO, with smaller batches.
    "highway": DocumentedRun(
        [
            "--algorithm=ppo",
            "--level_name=highway_env:highway-fast-v0",
            "--mlp_sizes=256,256",
            "--unroll_length=16",
            "--discounting=0.8",
            "--learning_rate=0.0005",
            "--total_environment_frames=40000",
            "--stop_at_return=22",
        ],
        17,
        7.8,
        "numbers [5, 5]; Discrete(5)",
        needs="highway-env",
        imports="highway_env",
    ),
    "lunarlander": DocumentedRun(  # the discount, lambda and entropy of RL Baselines3 Zoo's PPO
        [
            "--algorithm=ppo",
            "--level_name=LunarLander-v3",
            "--discounting=0.999",
            "--gae_lambda=0.98",
            "--entropy_cost=0.01",
            "--epochs=4",
            "--total_environment_frames=1500000",
            "--stop_at_return=200",
        ],
        190,
        -181,
        "numbers [8]; Discrete(4)",
        needs="gymnasium[box2d]",
        imports="Box2D",
    ),
    # InvertedPendulum-v5 stops at its own reward threshold, 950.
    "invertedpendulum": DocumentedRun(
        ["--level_name=InvertedPendulum-v5"],
        900,
        5.1,
        "numbers [4]; Box [1]",
        needs="gymnasium[mujoco]",
        imports="mujoco",
    ),
    "hopper": DocumentedRun(
        ["--level_name=Hopper-v5", "--total_environment_frames=1000000"],
        250,
        18,
        "numbers [11]; Box [3]",
        needs="gymnasium[mujoco]",
        imports="mujoco",
    ),
    "halfcheetah": DocumentedRun(
        ["--level_name=HalfCheetah-v5", "--total_environment_frames=1000000"],
        1000,
        -238,
        "numbers [17]; Box [6]",
        needs="gymnasium[mujoco]",
        imports="mujoco",
    ),
}


def _by_ppo(level: str, frames: str, **known: Any) -> DocumentedRun:
    """Return a run of PPO's defaults on a level for which CleanRL publishes PPO's result."""
    flags = ["--algorithm=ppo", f"--level_name={level}", f"--total_environment_frames={frames}"]
    return DocumentedRun(flags, **known)


_MUJOCO = {"needs": "gymnasium[mujoco]", "imports": "mujoco"}
# The results that CleanRL publishes for as many steps: https://docs.cleanrl.dev/rl-algorithms/ppo
DOCUMENTED_RUNS |= {
    "ppo-halfcheetah": _by_ppo(
        "HalfCheetah-v4",
        "1e6",
        goal=2500,
        random=-291,
        spaces="numbers [17]; Box [6]",
        published=(1443, 46),
        **_MUJOCO,
    ),
    "ppo-walker2d": _by_ppo(
        "Walker2d-v4",
        "1e6",
        goal=1716,
        random=1.9,
        spaces="numbers [17]; Box [6]",
        published=(2288, 572),
        **_MUJOCO,
    ),
    "ppo-hopper": _by_ppo(
        "Hopper-v4",
        "1e6",
        goal=2111,
        random=16.9,
        spaces="numbers [11]; Box [3]",
        published=(2383, 272),
        **_MUJOCO,
    ),
    "ppo-invertedpendulum": _by_ppo(
        "InvertedPendulum-v4",
        "1e6",
        goal=900,
        random=5.7,
        spaces="numbers [4]; Box [1]",
        published=(963, 22),
        **_MUJOCO,
    ),
    "ppo-cartpole": _by_ppo(
        "CartPole-v1",
        "5e5",
        goal=475,
        random=21.6,
        spaces="numbers [4]; Discrete(2)",
        published=(490, 6),
    ),
    "ppo-acrobot": _by_ppo(
        "Acrobot-v1",
        "5e5",
        goal=-90,
        random=-500,
        spaces="numbers [6]; Discrete(3)",
        published=(-86, 1),
    ),
}


def command_line(name: str, seed: int, *more: str) -> list[str]:
    """Return the arguments of the command; pages and recorded files contain them, quoted."""
    flags = [*DOCUMENTED_RUNS[name].flags, f"--seed={seed}", *more]
    return ["python", "experiment.py", *flags]


def run_documented(name: str, seed: int, logdir: Path, *more: str) -> int:
    """Run the command, with its output on this terminal, and return its exit code."""
    arguments = command_line(name, seed, *more, f"--logdir={logdir}")
    print(f"$ {shlex.join(arguments)}", flush=True)
    return subprocess.run([sys.executable, *arguments[1:]], cwd=ROOT, check=False).returncode


def read_metrics(logdir: Path) -> list[dict]:
    """Read the rows of metrics.jsonl."""
    return read_json_lines(logdir / "metrics.jsonl")


def describe_machine() -> str:
    """Describe this machine in the words that recorded curves contain."""
    return f"{provenance.machine()}, no GPU"
