"""Frames and games that the writers of Dopamine's files and the tests compute, and those files."""

import lzma
from pathlib import Path

import numpy as np

WRITTEN = Path(__file__).parents[1] / "impala_mm" / "teachers" / "dopamine"


def stacks(count=3):
    """Return stacks uint8 [count, 84, 84, 4], the oldest frame first, that differ in all axes."""
    n, row, column, frame = np.ogrid[:count, :84, :84, :4]
    return ((row * (3 + n) + column * (5 + frame) + 37 * frame + 11 * n) % 256).astype(np.uint8)


def games(count=6):
    """Yield games of `make_dopamine_replay`: (frames [N, 3, 2], actions, rewards, terminal).

    Every third one is cut by a limit.
    """
    draw = np.random.RandomState(5)
    for number in range(count):
        size = 4 + 3 * number
        frames = draw.randint(1, 256, (size, 3, 2)).astype(np.uint8)
        yield frames, draw.randint(0, 3, size), draw.randint(-1, 2, size) * 1.0, number % 3 != 2


def unpack(folder, kind):
    """Write the checkpoint of an agent, "dqn" or "rainbow", to a new folder; return it."""
    (folder / "checkpoints").mkdir(parents=True)
    content = lzma.decompress((WRITTEN / f"{kind}.xz").read_bytes())
    (folder / "checkpoints" / "ckpt.3").write_bytes(content)
    (folder / "checkpoints" / "sentinel_checkpoint_complete.3").write_text("done")
    return folder
