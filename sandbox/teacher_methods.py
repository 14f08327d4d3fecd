"""Compare the methods of learning from a teacher with learning from scratch, over several seeds.

    python sandbox/teacher_methods.py run policy-students          makes the runs of IMPALA
    python sandbox/teacher_methods.py run value-students           makes those of DQN
    python sandbox/teacher_methods.py run pong-students --seeds 3      makes those of IMPALA on Pong
    python sandbox/teacher_methods.py run breakout-students --seeds 1  and those on Breakout
    python sandbox/teacher_methods.py summarise policy-students    writes what they showed

`run` can be interrupted: called again, it continues. `summarise` writes the curves of the runs that
are over to sandbox/reference/NAME.json, draws them beside it, and prints a table (`comparison.py`).
Teachers are the policies of CartPole-v1 and Pong that come with this package, a rule for catch, and
on games also a run that ends early, which is made first.
"""

import os
import sys
from pathlib import Path

import comparison
from comparison import Comparison
from documented_runs import ROOT

_TEACHERS = {"catch": "sandbox.scripted_teacher:catch_the_ball", "CartPole-v1": "cartpole"}
OFFLINE = ["--teacher_steps=5000", "--offline_updates=500"]
# With --teacher_cost=0 the teacher plays, and its student does not compare itself with it.
_ONLY_PLAYS = ["--teacher_cost=0", *OFFLINE]

POLICY_FRAMES = {"catch": 30_000, "CartPole-v1": 80_000}
POLICY_STUDENTS = {
    "scratch": [],
    "kickstarting": ["--teacher_method=kickstarting", "--teacher_cost=10"],
    "qdagger": ["--teacher_method=qdagger", "--teacher_cost=10", *OFFLINE],
    "cloning": ["--offline_updates=500"],  # of the games that were played for qdagger
    "jsrl": ["--teacher_cost=0"],
    "constant": ["--teacher_method=constant", "--teacher_cost=10"],
}
VALUE_FRAMES = {"catch": 15_000, "CartPole-v1": 30_000}
VALUE_STUDENTS = {
    "scratch": [],
    "kickstarting": ["--teacher_method=kickstarting"],
    "qdagger": ["--teacher_method=qdagger", *OFFLINE],
    "cql": [*_ONLY_PLAYS, "--cql_cost=1"],
    "dqfd": [*_ONLY_PLAYS, "--margin_cost=1", "--teacher_margin=0.8", "--teacher_data_share=0.2"],
    "jsrl": ["--teacher_cost=0"],
    "dagger": ["--teacher_method=constant", "--td_cost=0"],
}
# Of a million and of two million steps.
GAME_FRAMES = {"PongNoFrameskip-v4": 4_000_000, "BreakoutNoFrameskip-v4": 8_000_000}
GAMES = {
    "PongNoFrameskip-v4": ["--preset=atari-impala", "--entropy_cost=0.003"],
    "BreakoutNoFrameskip-v4": ["--preset=breakout-impala"],
}
_WEAK = {"PongNoFrameskip-v4": 0, "BreakoutNoFrameskip-v4": 30}  # mean return of such a teacher
GAME_OFFLINE = ["--teacher_steps=50000", "--offline_updates=1000"]
GAME_METHODS = {
    "kickstarting": ["--teacher_method=kickstarting"],
    "qdagger": ["--teacher_method=qdagger", *GAME_OFFLINE],
}
PONG_STUDENTS = ("scratch", *(f"{m}-{t}" for t in ("weak", "strong") for m in GAME_METHODS))
_GUIDE = {"catch": 9, "CartPole-v1": 200}  # steps of jsrl
_PRESETS = {"catch": "catch-impala", "CartPole-v1": "classic-impala"}
DQN = {
    "catch": ["--level_name=catch", "--algorithm=dqn", "--epsilon_frames=5000"],
    "CartPole-v1": ["--preset=classic-dqn", "--epsilon_frames=10000"],
}


def _command(
    base: list[str], method: list[str], level: str, kind: str, seed: int, frames: int, out: Path
) -> list[str]:
    """Return the arguments of a run of one method, without its folder."""
    taught = []
    if kind == "cloning":
        games = out / f"{level}-qdagger-{seed}" / "teacher_data" / "learner-0"
        taught = [f"--teacher_data={os.path.relpath(games, ROOT)}"]
    elif kind != "scratch":
        taught = [f"--teacher={_TEACHERS[level]}", f"--teacher_frames={frames // 2}"]
    if kind == "jsrl":
        taught.append(f"--guide_steps={_GUIDE[level]}")
    return [
        *("python", "experiment.py", *base, *taught, *method, f"--seed={seed}"),
        *(f"--total_environment_frames={frames}", "--stop_at_return=inf", "--num_actors=1"),
        "--check_env_secs=0",
    ]


def policy_student(level: str, kind: str, seed: int, out: Path) -> list[str]:
    """Return the arguments of a run of IMPALA."""
    base, frames = [f"--preset={_PRESETS[level]}"], POLICY_FRAMES[level]
    return _command(base, POLICY_STUDENTS[kind], level, kind, seed, frames, out)


def value_student(level: str, kind: str, seed: int, out: Path) -> list[str]:
    """Return the arguments of a run of DQN."""
    frames = VALUE_FRAMES[level]
    return _command(DQN[level], VALUE_STUDENTS[kind], level, kind, seed, frames, out)


def _game(level: str, seed: int, stop_at: str, frames: int) -> list[str]:
    """Return the arguments of a run of IMPALA on a game of Atari."""
    return [
        *("python", "experiment.py", *GAMES[level]),
        *(f"--total_environment_frames={frames}", f"--stop_at_return={stop_at}", f"--seed={seed}"),
    ]


def game_student(level: str, kind: str, seed: int, out: Path) -> list[str]:
    """Return the arguments of a run on a game, whose teacher is weak or strong."""
    frames = GAME_FRAMES[level]
    run = _game(level, seed, "inf", frames)
    if kind == "scratch":
        return run
    method, _, strength = kind.partition("-")
    teacher = "pong" if strength == "strong" else os.path.relpath(out / _weak(level), ROOT)
    taught = [f"--teacher={teacher}", "--teacher_cost=10", f"--teacher_frames={frames // 2}"]
    return [*run, *taught, *GAME_METHODS[method]]


def _weak(level: str) -> str:
    return f"{level}-weak-teacher"


def _games(name: str, level: str, kinds: tuple[str, ...]) -> Comparison:
    frames = GAME_FRAMES[level]
    teacher = _game(level, 100, str(_WEAK[level]), 2 * frames)
    before = {level: {_weak(level): teacher}}
    return Comparison(name, "method", kinds, {level: frames}, game_student, before)


COMPARISONS = [
    Comparison(
        *("policy-students", "method", tuple(POLICY_STUDENTS), POLICY_FRAMES, policy_student),
        is_short=True,
    ),
    Comparison("value-students", "method", tuple(VALUE_STUDENTS), VALUE_FRAMES, value_student),
    _games("pong-students", "PongNoFrameskip-v4", PONG_STUDENTS),
    _games("breakout-students", "BreakoutNoFrameskip-v4", ("scratch", "qdagger-weak")),
]

if __name__ == "__main__":
    try:
        comparison.main(__doc__, COMPARISONS)
    except KeyboardInterrupt:
        sys.exit(130)
