"""Compare the kinds of replay, over several seeds.

    python sandbox/replay_kinds.py run replay-kinds             makes the runs on catch and memory
    python sandbox/replay_kinds.py run replay-breakout --seeds 3
    python sandbox/replay_kinds.py summarise replay-kinds       writes what they showed

`run` writes to runs/NAME and can be interrupted: called again, it continues. `summarise` writes the
curves of the runs that are over to sandbox/reference/NAME.json, draws them beside it, and prints a
table (`comparison.py`).
"""

import sys
from pathlib import Path

import comparison
from comparison import Comparison

# A batch has 8 unrolls: with replay 4 of them are new, so the same frames make twice the updates.
KINDS = {
    "none": "",
    "uniform": "queue:0.5,uniform:0.5:1000",
    "prioritised": "queue:0.5,prioritised:0.5:1000",
    "attentive": "queue:0.5,attentive:0.5:1000",
    "elite": "queue:0.5,elite:0.5:1000",
}
# Without replay and with two actors, catch is learnt after 67,000 frames and memory after 22,000.
FRAMES = {"catch": 40_000, "memory": 25_000}
GAME_FRAMES = {"breakout": 4_000_000}  # a million steps


def command(level: str, kind: str, seed: int, out: Path) -> list[str]:
    """Return the arguments of a run, without its folder."""
    del out
    frames = (FRAMES | GAME_FRAMES)[level]
    replay = [f"--replay={KINDS[kind]}"] if KINDS[kind] else []
    small = ["--num_actors=1", "--check_env_secs=0"] if level in FRAMES else []
    return [
        *("python", "experiment.py", f"--preset={level}-impala", f"--seed={seed}", *replay),
        *(f"--total_environment_frames={frames}", "--stop_at_return=inf", *small),
    ]


OF = Comparison("replay-kinds", "replay", tuple(KINDS), FRAMES, command)
OF_GAME = Comparison("replay-breakout", "replay", ("none", "uniform"), GAME_FRAMES, command)

if __name__ == "__main__":
    try:
        comparison.main(__doc__, [OF, OF_GAME])
    except KeyboardInterrupt:
        sys.exit(130)
