"""The state of NumPy's random numbers as an array, to be saved with what they draw."""

import numpy as np


def encode(random: np.random.Generator) -> np.ndarray:
    """Return the state of a generator that `np.random.default_rng` made, as 64-bit numbers."""
    state = random.bit_generator.state
    large = [state["state"]["state"], state["state"]["inc"]]
    words = [(number >> shift) & (2**64 - 1) for number in large for shift in (64, 0)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def decode(random: np.random.Generator, words: np.ndarray) -> None:
    """Give a generator the state that `encode` returned."""
    a, b, c, d, has, rest = map(int, words)
    state = dict(random.bit_generator.state)
    state["state"] = {"state": (a << 64) | b, "inc": (c << 64) | d}
    state["has_uint32"], state["uinteger"] = has, rest
    random.bit_generator.state = state
