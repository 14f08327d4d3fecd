"""Videos as mp4 files that every browser plays.

They are H.264 in 4:2:0 with even sizes, and have their index before the pictures, so that they
start playing while they load. A file gets its name when it is complete. `game_video` adds the
frames.
"""

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

_LARGE = 320  # pixels; smaller pictures are enlarged
_QUALITY = "18"  # crf of x264: visually almost lossless


class VideoFailed(Exception):
    """A video cannot be written; the message says why."""


class VideoWriter:
    """A writer of one video."""

    def __init__(self, path: Path, fps: float = 30.0):
        self._path, self._fps = path, Fraction(fps).limit_denominator(1000)
        self._work = path.with_name(f".{path.name}.writing")
        self._av = _import_av()
        try:  # refused before any game is played
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VideoFailed(f"{path.parent}: {error.strerror}") from None
        self._file: Any = None  # opened with the first frame, whose size it has
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def add(self, frame: np.ndarray) -> None:
        """Add a frame: uint8 [H, W, 3], RGB, of the same size as all before."""
        if self._shape and frame.shape != self._shape:
            raise VideoFailed(
                f"a frame must be {list(self._shape)}, like the first one, not {list(frame.shape)}"
            )
        self._shape = frame.shape
        picture = _even(enlarge(frame))
        if self._file is None:
            self._open(*picture.shape[:2])
        self._write(self._av.VideoFrame.from_ndarray(picture, format="rgb24"))

    def close(self) -> None:
        """Finish the video and give it its name; without frames there is no file."""
        if self._file is None:
            return
        try:
            self._write(None)
            with self._failing():
                self._file.close()
                self._file = None
                self._work.replace(self._path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Delete what was written."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError, self._av.FFmpegError):
                self._file.close()
            self._file = None
        with contextlib.suppress(OSError):  # a disk that lets nothing be written
            self._work.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        options = {"movflags": "+faststart"}
        self._file = self._av.open(str(self._work), "w", format="mp4", options=options)
        stream = self._file.add_stream("libx264", rate=self._fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1  # leaves the other cores to training
        # A key frame every two seconds, to which players can jump.
        seconds = {"g": str(max(1, round(2 * self._fps)))}
        stream.options = {"crf": _QUALITY, "preset": "veryfast"} | seconds
        # The conversion of colours, which players else guess by the size.
        stream.codec_context.colorspace = 6  # BT.601
        stream.codec_context.color_range = 1  # 16 to 235
        self._stream = stream

    def _write(self, frame: Any) -> None:
        with self._failing():
            for packet in self._stream.encode(frame):
                self._file.mux(packet)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise VideoFailed where the file cannot be written."""
        try:
            yield
        except (OSError, self._av.FFmpegError) as error:
            raise VideoFailed(f"{self._path} cannot be written: {error}") from None


def enlarge(frame: np.ndarray) -> np.ndarray:
    """Return a small picture [H, W, 3] with each pixel as a square; larger ones unchanged."""
    times = -(-_LARGE // max(frame.shape[:2]))
    return frame.repeat(times, axis=0).repeat(times, axis=1) if times > 1 else frame


def _even(frame: np.ndarray) -> np.ndarray:
    """Return the frame with even height and width, as 4:2:0 needs, by repeating its edge."""
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _import_av() -> Any:
    try:
        import av  # noqa: PLC0415
    except ImportError as error:
        raise VideoFailed(
            f"videos need PyAV, which cannot be imported ({error}): "
            f"`pip install 'av>=16,<19'` installs it"
        ) from None
    return av
