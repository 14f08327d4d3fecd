"""Write the replays in dopamine/replay/ with the real Dopamine's replay buffer.

    PYTHONPATH=tests/helpers python tests/impala_mm/teachers/make_dopamine_replay.py

It ran with Python 3.10, dopamine-rl 4.0.6, tensorflow-cpu 2.12.0 and numpy 1.23.5 in an environment
of its own. Replay 1 has room for all games; in replay 2, the newest have overwritten the oldest,
and the last game is not at its end.
"""

from pathlib import Path

from dopamine.replay_memory import circular_replay_buffer
from dopamine_stacks import games

FOLDER = Path(__file__).parent / "dopamine" / "replay"

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for iteration, capacity, rest in ((1, 100, 0), (2, 60, 5)):
        replay = circular_replay_buffer.OutOfGraphReplayBuffer((3, 2), 4, capacity, 2)
        for number, (frames, actions, rewards, terminal) in enumerate(games()):
            size = len(frames) if number < 5 else len(frames) - rest
            for t in range(size):
                last = t == len(frames) - 1
                replay.add(
                    *(frames[t], actions[t], rewards[t], last and terminal),
                    episode_end=last,
                )
        replay.save(str(FOLDER), iteration)
