"""Texts as numbers: the words of a sentence, which a network embeds as it embeds many choices.

A word becomes three hashes of few numbers each: a table of all words would be large, and two words
share all three once in 30,000. Each position has choices of its own, so that the order is read:

    "go to the red ball"  ->  hashes of go, to, the, red, ball, then zeros, int32 [72]
"""

import functools
import hashlib
import re
from typing import Any

import numpy as np

WORDS = 24  # of a text that are read; punctuation marks are words
_HASHES = 3  # of a word
_NUMBERS = 32  # of a hash; 0 is no word
CHOICES = (_NUMBERS,) * (WORDS * _HASHES)
_WORD = re.compile(r"\w+|[^\w\s]")


def is_text(space: Any) -> bool:
    """Return whether a space is of texts: gymnasium's, or that of another package."""
    return getattr(getattr(space, "dtype", None), "kind", "") == "U"


def read_texts(raw: np.ndarray) -> np.ndarray:
    """Return the numbers int32 [N, 72] of N texts; raise ValueError for what is no text."""
    texts = raw.tolist()
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"observation {text!r} is no text, and its space has texts")
    return np.stack([_numbers(text) for text in texts])


@functools.lru_cache(maxsize=4096)
def _numbers(text: str) -> np.ndarray:
    numbers = np.zeros([WORDS, _HASHES], np.int32)
    for i, word in enumerate(_WORD.findall(text.lower())[:WORDS]):
        digest = hashlib.blake2b(word.encode(), digest_size=_HASHES).digest()
        numbers[i] = [byte % (_NUMBERS - 1) + 1 for byte in digest]
    numbers.flags.writeable = False
    return numbers.ravel()
