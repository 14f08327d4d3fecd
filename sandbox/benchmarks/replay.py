"""The time that replay takes besides training: priorities, draws, and bytes that become arrays.

    python sandbox/benchmarks/replay.py [--items=1000000]

Priorities: 512 of a million items are drawn, weighted, and written back. Unrolls: those of 20 steps
of a game of Atari are stored, drawn and unpacked, in one thread; the frames are made up, of
rectangles that move, and compress about as well as Pong's.
"""

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from impala_mm.config import command_line, replay_mix
from impala_mm.config.flags import flag
from impala_mm.replay.samplers import SamplerSetup, make_replay
from impala_mm.replay.store import StoredUnroll, pack, unpack

_ROUNDS, _DRAWN = 200, 512
_STEPS, _SIDE = 20, 84


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of this benchmark."""

    items: int = flag(
        1_000_000, group="Benchmark", least=_DRAWN, text="Items that have a priority."
    )


def median_ms(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """Return the median time of a call, in milliseconds."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def measure_priorities(items: int) -> tuple[float, float]:
    """Return the milliseconds of drawing 512 of these items, and of writing them back."""
    random = np.random.default_rng(0)
    (part,) = replay_mix.parse(f"prioritised:1:{items}").replays
    sampler = make_replay(SamplerSetup(part, math.inf, random))
    for key in range(items):
        sampler.insert(StoredUnroll(key, 0, b""))
    sampler.feedback(np.arange(items), random.random(items))
    draw = sampler.draw(_DRAWN, 0.5)

    def write() -> None:
        sampler.write_priorities(sampler.store.keys[draw.slots], random.random(_DRAWN))

    return median_ms(lambda: sampler.draw(_DRAWN, 0.5)), median_ms(write)


def made_up_unroll(random: np.random.Generator) -> bytes:
    """Return the frames of an unroll of Atari: a court with two bars and a ball that move."""
    frames = np.full([_STEPS + 4, _SIDE, _SIDE], 87, np.uint8)
    frames[:, :14] = frames[:, -7:] = 236
    for frame, (y, x) in zip(frames, random.integers(15, 70, [len(frames), 2]), strict=True):
        frame[y : y + 8, 8:10] = frame[x : x + 8, -10:-8] = 147
        frame[y, x : x + 2] = 236
    return frames.tobytes()


def measure_unrolls() -> dict[str, float]:
    """Return milliseconds for an unroll, and its bytes, by name."""
    content = made_up_unroll(np.random.default_rng(0))
    packed = pack(content)
    return {
        "packing": median_ms(lambda: pack(content)),
        "unpacking": median_ms(lambda: unpack(packed, len(content))),
        "bytes": len(content),
        "stored bytes": len(packed),
    }


def main() -> None:
    """Print both measurements."""
    (settings,), _ = command_line.parse(sys.argv, __doc__ or "", Settings)
    draw, write = measure_priorities(settings.items)
    print(
        f"{settings.items:,} priorities: {_DRAWN} drawn in {draw:.2f} ms, written "
        f"back in {write:.2f} ms"
    )
    found = measure_unrolls()
    print(
        f"an unroll of {found['bytes']:,.0f} bytes: packed into {found['stored bytes']:,.0f} in "
        f"{found['packing']:.3f} ms, unpacked in {found['unpacking']:.3f} ms"
    )


if __name__ == "__main__":
    main()
