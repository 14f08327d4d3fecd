"""Videos play in browsers, hold the frames that were added, and appear only when complete."""

import sys

import numpy as np
import pytest

from impala_mm.evaluation.game_video import draw_below
from impala_mm.evaluation.video_writer import VideoFailed, VideoWriter, enlarge


def _frames(count, height=120, width=320):
    """Return frames of a bright square that moves over a dim gradient."""
    for i in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[..., 1] = np.linspace(20, 120, width, dtype=np.uint8)
        frame[40:80, 10 + 8 * i : 50 + 8 * i] = (250, 60, 30)
        yield frame


def _record(path, frames, fps=30.0):
    writer = VideoWriter(path, fps)
    try:
        for frame in frames:
            writer.add(frame)
    except BaseException:
        writer.discard()
        raise
    writer.close()


def _decode(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)]
        coded = stream.codec_context
        return frames, (coded.name, coded.pix_fmt, float(stream.average_rate))


def test_a_video_is_h264_that_starts_before_it_is_loaded_and_holds_the_frames(tmp_path):
    path = tmp_path / "videos" / "game.mp4"
    given = list(_frames(20))
    _record(path, given, fps=12.5)
    assert [each.name for each in path.parent.iterdir()] == ["game.mp4"]
    content = path.read_bytes()
    assert content.index(b"moov") < content.index(b"mdat"), "the index comes first"
    frames, how = _decode(path)
    assert how == ("h264", "yuv420p", 12.5)
    assert len(frames) == len(given)
    for frame, was in zip(frames, given, strict=True):
        assert np.abs(frame.astype(int) - was).mean() < 2


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ((210, 160), (420, 320)),
        ((401, 601), (402, 602)),
        ((3, 5), (192, 320)),
    ],
)
def test_small_pictures_are_enlarged_by_whole_factors_and_odd_ones_get_a_row_more(
    tmp_path, given, stored
):
    frame = np.random.default_rng(1).integers(256, size=(*given, 3)).astype(np.uint8)
    _record(tmp_path / "a.mp4", [frame] * 2)
    frames, _ = _decode(tmp_path / "a.mp4")
    assert frames[0].shape == (*stored, 3)
    large = enlarge(frame)
    times = len(large) // len(frame)
    assert (large[::times, ::times] == frame).all()
    assert (large[times - 1 :: times, times - 1 :: times] == frame).all()


def test_without_a_frame_or_after_an_error_nothing_is_left(tmp_path):
    def and_then_fail():
        yield from _frames(3)
        raise KeyError

    _record(tmp_path / "a.mp4", [])
    with pytest.raises(KeyError):
        _record(tmp_path / "a.mp4", and_then_fail())
    assert not list(tmp_path.iterdir())
    (tmp_path / "a.mp4").write_text("what was there")
    with pytest.raises(KeyError):
        _record(tmp_path / "a.mp4", and_then_fail())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["what was there"]


def test_a_frame_of_another_size_is_refused(tmp_path):
    frame = np.zeros((120, 300, 3), np.uint8)
    with pytest.raises(VideoFailed, match=r"must be \[120, 320, 3\], .* not \[120, 300"):
        _record(tmp_path / "a.mp4", [*_frames(1), frame])
    assert not list(tmp_path.iterdir())


def test_without_the_library_one_sentence_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(VideoFailed, match="pip install 'av"):
        VideoWriter(tmp_path / "a.mp4")


@pytest.mark.parametrize("size", [(210, 160), (400, 600), (600, 40)])
def test_the_overlay_is_below_the_picture_and_shows_each_of_its_figures(size):
    frame = np.random.default_rng(1).integers(256, size=(*size, 3)).astype(np.uint8)
    was, large = frame.copy(), enlarge(frame)
    height, width = large.shape[:2]
    policy = np.array([0.5, 0.25, 0.25, 0.0])
    figures = ["LEFT", 1.5, 3.0, policy, 0]
    plain = draw_below(frame, *figures)
    assert (frame == was).all()
    left = (plain.shape[1] - width) // 2
    assert plain.dtype == np.uint8
    assert plain.shape[1] >= 320
    assert (plain[:height, left : left + width] == large).all(), "nothing covers the picture"
    for i, changed in enumerate(["RIGHT", 1.75, 1234567.0, policy[::-1], 1]):
        other = draw_below(frame, *figures[:i], changed, *figures[i + 1 :])
        assert other.shape == plain.shape, "a video's frames are of one size"
        assert (other[height:] != plain[height:]).any()
    without = draw_below(frame, "LEFT", 1.5, 3.0, None)
    assert height < len(without) < len(plain)
