"""Make breakout.gif, some seconds of a game by the policy that comes with the package.

python sandbox/draw_game.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import cv2
from PIL import Image

_ROOT = Path(__file__).resolve().parent.parent
_COMMAND = ("--mode=test", "--policy=breakout", "--test_num_episodes=1", "--num_envs=1")
_FIRST, _COUNT, _EVERY = 900, 80, 3  # frames of the video
_COLOURS = 32


def main() -> None:
    """Play a game, and draw a part of its video."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "experiment.py", *_COMMAND, f"--video_dir={folder}"]
        subprocess.run(command, cwd=_ROOT, check=True)
        (path,) = Path(folder).glob("**/*.mp4")
        video, frames = cv2.VideoCapture(str(path)), []
        rate = video.get(cv2.CAP_PROP_FPS)
        while len(frames) < _FIRST + _COUNT * _EVERY:
            is_read, frame = video.read()
            if not is_read:
                break
            frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
    shown = [Image.fromarray(frame) for frame in frames[_FIRST::_EVERY]]
    first, *rest = [frame.quantize(_COLOURS, dither=0) for frame in shown]
    first.save(
        _ROOT / "sandbox" / "breakout.gif",
        save_all=True,
        append_images=rest,
        duration=1000 * _EVERY / rate,
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    main()
