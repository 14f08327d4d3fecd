"""Compressed content arrives unchanged, and false content does no harm."""

import tracemalloc

import lz4.block
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config import auto
from impala_mm.config.settings import Config
from impala_mm.data.compression import COMPRESSORS, compress_lz4, decompress

ANY = st.binary(max_size=5000)
# Short pieces that repeat, as in pictures.
REPEATING = st.lists(st.tuples(st.binary(max_size=9), st.integers(0, 300)), max_size=9).map(
    lambda pieces: b"".join(piece * times for piece, times in pieces)
)


@pytest.mark.parametrize("name", COMPRESSORS)
@given(content=ANY | REPEATING)
def test_content_of_any_kind_comes_back_and_is_never_longer_on_the_wire(name, content):
    packed = COMPRESSORS[name](content)
    assert len(packed) <= len(content)
    assert decompress(packed, len(content)) == content


def test_frames_shrink_and_only_by_lz4():
    frames = bytes(84 * 84) + b"\x57" * 84 * 84
    assert len(compress_lz4(frames)) < len(frames) / 50
    assert COMPRESSORS["none"](frames) == frames


@given(content=ANY, size=st.integers(0, 10_000))
def test_rubbish_is_of_the_size_that_is_due_or_nothing(content, size):
    raw = decompress(content, size)
    assert raw is None or len(raw) == size


@settings(deadline=None)
@given(content=REPEATING.filter(len), off=st.integers(-3, 3).filter(bool))
def test_what_was_of_another_size_is_nothing(content, off):
    packed, size = compress_lz4(content), max(0, len(content) + off)
    assert len(packed) == size or decompress(packed, size) is None


def test_a_bomb_is_nothing_and_takes_no_memory():
    """One block holds 100 MB in 400 kB; another one claims a size of 3 GB."""
    bomb, stated = compress_lz4(bytes(100_000_000)), (3 << 30).to_bytes(4, "little")
    tracemalloc.start()
    try:
        assert decompress(bomb, 10_000) is None
        assert decompress(stated + bomb, 1_000_000) is None
        assert decompress(lz4.block.compress(bytes(5000), store_size=True), 5000) is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3_000_000


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ([84, 84, 1], tf.uint8, "lz4"),
        ([10, 5, 1], tf.float32, "none"),
        ([128], tf.uint8, "none"),
    ],
)
def test_auto_is_for_images_and_what_is_asked_for_holds(shape, dtype, expected):
    observation = tf.TensorSpec(shape, dtype)
    assert auto.compression(Config(), observation) == expected
    for asked in COMPRESSORS:
        assert auto.compression(Config(compression=asked), observation) == asked
