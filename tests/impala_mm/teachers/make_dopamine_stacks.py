"""Write the replays in dopamine/stacked/ with the real Dopamine's replay buffer of version 4.1.

    PYTHONPATH=tests/helpers python tests/impala_mm/teachers/make_dopamine_stacks.py

It ran with Python 3.11, dopamine-rl 4.1.2, jax 0.4.35, flax 0.10.0, orbax-checkpoint 0.7.0,
python-snappy and msgpack in an environment of its own, without TensorFlow. Replay 1 has room for
all games; in replay 2, the newest have overwritten the oldest, and the last game is not at its end.
Replay 3 adds up the rewards of three steps, and replay 4 is not compressed.
"""

import shutil
import tempfile
from pathlib import Path

from dopamine.jax.replay_memory import accumulator, elements, replay_buffer, samplers
from dopamine_stacks import games

FOLDER = Path(__file__).parent / "dopamine" / "stacked"

if __name__ == "__main__":
    for iteration, capacity, rest, horizon, compress in (
        (1, 100, 0, 1, True),
        (2, 60, 5, 1, True),
        (3, 100, 0, 3, True),
        (4, 100, 0, 1, False),
    ):
        replay = replay_buffer.ReplayBuffer(
            accumulator.TransitionAccumulator(4, horizon, 0.99),
            samplers.UniformSamplingDistribution(seed=1),
            batch_size=2,
            max_capacity=capacity,
            compress=compress,
        )
        for number, (frames, actions, rewards, terminal) in enumerate(games()):
            size = len(frames) if number < 5 else len(frames) - rest
            for t in range(size):
                last = t == len(frames) - 1
                replay.add(
                    elements.TransitionElement(
                        frames[t], actions[t], rewards[t], last and terminal, last
                    )
                )
        with tempfile.TemporaryDirectory() as folder:
            replay.save(folder, iteration)
            kept = FOLDER / str(iteration) / "replay"
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(folder) / str(iteration) / "replay" / "checkpoint.msgpack", kept)
