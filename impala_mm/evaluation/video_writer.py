"""Videos of what agents play: mp4 files that every browser plays and starts at once.

H.264 in 4:2:0, sizes even, and the index before the pictures, so that one starts while it loads. A
file appears under its name when it is whole. `game_video` gives the frames.
"""

import contextlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

_LARGE = 320  # pixels; smaller pictures are enlarged
_QUALITY = "18"  # x264's crf: about where eyes stop to see a difference


class VideoFailed(Exception):
    """There will be no video; says why."""


class VideoWriter:
    """Writes one video; as a context it leaves nothing behind where an error ends it."""

    def __init__(self, path: Path, fps: float = 30.0):
        self._path, self._fps = path, Fraction(fps).limit_denominator(1000)
        self._work = path.with_name(f".{path.name}.writing")
        self._av = _import_av()
        try:  # before anything is played for it
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise VideoFailed(f"{path.parent}: {error.strerror}") from None
        self._file: Any = None  # made with the first frame, which has its size
        self._stream: Any = None
        self._shape: tuple[int, ...] = ()

    def __enter__(self) -> "VideoWriter":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.discard() if kind else self.close()

    def add(self, frame: np.ndarray) -> None:
        """The next frame: uint8 [H, W, 3], RGB, of the same size as all before."""
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise ValueError(f"a frame of {frame.dtype} {list(frame.shape)}, not uint8 [H, W, 3]")
        if self._shape and frame.shape != self._shape:
            raise ValueError(f"a frame of {list(frame.shape)} after one of {list(self._shape)}")
        self._shape = frame.shape
        picture = _even(enlarge(frame))
        if self._file is None:
            self._open(*picture.shape[:2])
        self._write(self._av.VideoFrame.from_ndarray(picture, format="rgb24"))

    def close(self) -> None:
        """The video gets its name; where no frame came there is none."""
        if self._file is None:
            return
        try:
            self._write(None)
            self._file.close()
            self._file = None
            self._work.replace(self._path)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Nothing is kept."""
        if self._file is not None:
            with contextlib.suppress(OSError, ValueError, self._av.FFmpegError):
                self._file.close()
            self._file = None
        self._work.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        options = {"movflags": "+faststart"}
        self._file = self._av.open(str(self._work), "w", format="mp4", options=options)
        stream = self._file.add_stream("libx264", rate=self._fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.thread_count = 1  # the other cores are training
        # A frame every two seconds that needs no other: from there players can jump in.
        seconds = {"g": str(max(1, round(2 * self._fps)))}
        stream.options = {"crf": _QUALITY, "preset": "veryfast"} | seconds
        # How the colours were converted; players guess by the size where nothing says so.
        stream.codec_context.colorspace = 6  # BT.601
        stream.codec_context.color_range = 1  # 16 to 235
        self._stream = stream

    def _write(self, frame: Any) -> None:
        try:
            for packet in self._stream.encode(frame):
                self._file.mux(packet)
        except (OSError, self._av.FFmpegError) as error:
            raise VideoFailed(f"{self._path} cannot be written: {error}") from None


def enlarge(frame: np.ndarray) -> np.ndarray:
    """A small picture [H, W, 3], each pixel a square of several; others as they are."""
    times = -(-_LARGE // max(frame.shape[:2]))
    return frame.repeat(times, axis=0).repeat(times, axis=1) if times > 1 else frame


def _even(frame: np.ndarray) -> np.ndarray:
    """With the last row and column once more where they are odd in number: 4:2:0 wants pairs."""
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _import_av() -> Any:
    try:
        import av  # noqa: PLC0415
    except ImportError as error:
        raise VideoFailed(
            f"videos are written by PyAV, and it cannot be imported ({error}): "
            f"`pip install 'av>=16,<19'` brings it"
        ) from None
    return av
