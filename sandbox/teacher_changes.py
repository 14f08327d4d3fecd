"""Compare students that differ from their teacher with learning from scratch.

They have another network, another algorithm or another environment.

    python sandbox/teacher_changes.py run          makes the teachers, then the runs
    python sandbox/teacher_changes.py summarise    writes what they showed

`run` writes to runs/teacher-changes and can be interrupted: called again, it continues. Students
learn by QDagger. Their teachers are runs of IMPALA with a feed-forward network: one on catch, and
the policy of Pong that comes with this package; for `dqn-teacher`, runs of DQN.
"""

import os
import sys
from pathlib import Path

import comparison
from comparison import Comparison
from documented_runs import ROOT
from teacher_methods import DQN, GAME_OFFLINE, GAMES, OFFLINE

_CATCH, _PONG = "catch", "PongNoFrameskip-v4"
FRAMES = {_CATCH: 30_000, _PONG: 2_000_000}  # of Pong half a million steps
# What each student has and its teacher has not. For `dqn-teacher` it is IMPALA itself.
_STICKY = 'gymnasium.wrappers:StickyAction{"repeat_action_probability": 0.25}'
_IMPALA = {_CATCH: ["--preset=catch-impala"], _PONG: GAMES[_PONG]}
CHANGES = {
    "network": {
        _CATCH: [*_IMPALA[_CATCH], "--agent_name=MLPLSTMAgent"],
        # At the preset's rate, which is for a small network, this one learns nothing.
        _PONG: [*_IMPALA[_PONG], "--agent_name=ResNetLSTMAgent", "--learning_rate=0.0002"],
    },
    "algorithm": {
        _CATCH: [
            *("--level_name=catch", "--algorithm=ppo", "--batch_size=8", "--unroll_length=20"),
            "--epochs=4",
        ],
        _PONG: ["--preset=atari-ppo", "--entropy_cost=0.005"],
    },
    "sticky-actions": {
        _CATCH: [*_IMPALA[_CATCH], f"--env_wrappers={_STICKY}"],
        _PONG: [*_IMPALA[_PONG], "--sticky_actions=0.25"],
    },
    "dqn-teacher": _IMPALA,
}
# An update of PPO on Pong has 13 times as many steps as one of IMPALA, four times each.
_OFFLINE = {_CATCH: OFFLINE, _PONG: GAME_OFFLINE}
_OFFLINE_PPO = [GAME_OFFLINE[0], "--offline_updates=50"]
KINDS = tuple(f"{change}{end}" for change in CHANGES for end in ("", "-scratch"))
_TEACHER = {_CATCH: "catch-teacher", _PONG: "pong"}
_DQN_TEACHER = {_CATCH: "catch-dqn-teacher", _PONG: "pong-dqn-teacher"}
BEFORE = {
    _CATCH: {
        "catch-teacher": [
            *("--preset=catch-impala", "--total_environment_frames=200000"),
            *("--stop_at_return=0.95", "--seed=100"),
        ],
        "catch-dqn-teacher": [
            *DQN[_CATCH],
            *("--total_environment_frames=50000", "--stop_at_return=0.95", "--seed=100"),
        ],
    },
    # DQN itself takes millions of steps to play Pong; this one is a student of the policy.
    _PONG: {
        "pong-dqn-teacher": [
            *("--preset=dqn", "--agent_name=ShallowConvAgent", "--teacher=pong"),
            *("--teacher_method=constant", "--teacher_steps=50000", "--offline_updates=10000"),
            *("--epsilon_start=0.05", "--total_environment_frames=400000", "--seed=100"),
        ],
    },
}


def command(level: str, kind: str, seed: int, out: Path) -> list[str]:
    """Return the arguments of a run, without its folder."""
    change = kind.removesuffix("-scratch")
    frames = FRAMES[level]
    taught = []
    if kind == change:
        teacher = (_DQN_TEACHER if change == "dqn-teacher" else _TEACHER)[level]
        if teacher in BEFORE[level]:
            teacher = os.path.relpath(out / teacher, ROOT)
        offline = _OFFLINE_PPO if (level, change) == (_PONG, "algorithm") else _OFFLINE[level]
        taught = [
            *(f"--teacher={teacher}", "--teacher_method=qdagger", "--teacher_cost=10"),
            *(f"--teacher_frames={frames // 2}", *offline),
        ]
    return [
        *("python", "experiment.py", *CHANGES[change][level], *taught, f"--seed={seed}"),
        *(f"--total_environment_frames={frames}", "--stop_at_return=inf"),
    ]


OF = Comparison(
    *("teacher-changes", "change", KINDS, FRAMES, command),
    before={
        level: {name: ["python", "experiment.py", *run] for name, run in runs.items()}
        for level, runs in BEFORE.items()
    },
)

if __name__ == "__main__":
    try:
        comparison.main(__doc__, [OF])
    except KeyboardInterrupt:
        sys.exit(130)
