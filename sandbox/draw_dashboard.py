"""Make dashboard.png and learning.gif, the pictures of the dashboard, from runs that it starts.

    python sandbox/draw_dashboard.py              dashboard.png, the page of a run after a minute
    python sandbox/draw_dashboard.py --learning   learning.gif, the page while CartPole is learnt

One actor of the first run is killed on the way; the second one is that of `make train`, with one
picture a second, shown ten times as fast. The pictures are taken by the system's Chromium.
"""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

_ROOT = Path(__file__).resolve().parent.parent
_RUN = (
    *("--level_name=CartPole-v1", "--num_learners=2", "--num_actors=4", "--stop_at_return=1000"),
    *("--max_seconds=1e6", "--save_checkpoint_secs=60", "--seed=1"),
)
_SECONDS = 60.0
_LEARNING = ("--level_name=CartPole-v1", "--num_learners=2", "--batch_size=4", "--max_seconds=160")
_FRAME_SECONDS, _SHOWN_SECONDS, _LAST_SECONDS = 1.0, 0.1, 4.0
_COLOURS, _WIDTH = 64, 800  # of the moving picture


def _start(*flags: str, folder: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(_ROOT / "experiment.py"), *flags],
        env=os.environ | {"TMPDIR": folder, "XDG_STATE_HOME": folder},  # it shows no other run
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _kill_actor(logdir: Path) -> None:
    pattern = f"logdir={logdir} .*--job_name=actor --task=3"
    found = subprocess.check_output(["pgrep", "-f", pattern], text=True)
    os.kill(int(found.split()[0]), signal.SIGKILL)


@contextlib.contextmanager
def _shown_run(
    flags: tuple[str, ...], height: int
) -> Iterator[tuple[Page, Path, subprocess.Popen]]:
    """Start a run and a dashboard; yield the run's page, its folder and its process."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runs:
        logdir = Path(runs) / "cartpole"
        run = _start(*flags, f"--logdir={logdir}", folder=folder)
        dashboard = _start("--dashboard", f"--logdir={runs}", folder=folder)
        try:
            assert dashboard.stdout
            address = re.search(r"http://\S+", dashboard.stdout.readline())
            assert address, "the dashboard printed no address"
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
                page = browser.new_page(viewport={"width": 1280, "height": height})
                page.goto(address[0])
                page.wait_for_selector(".runs tbody a", timeout=60_000)
                page.click(".runs tbody a")
                yield page, logdir, run
                browser.close()
        finally:
            for process in (run, dashboard):
                with contextlib.suppress(ProcessLookupError):  # the run may have ended
                    os.killpg(process.pid, signal.SIGTERM)
                process.communicate()


def draw_page() -> None:
    """Draw the page of a run after a minute."""
    with _shown_run(_RUN, height=1480) as (page, logdir, _):
        page.wait_for_selector(".part-hosts canvas", timeout=60_000)
        page.wait_for_timeout(600 * _SECONDS)
        _kill_actor(logdir)
        page.wait_for_timeout(400 * _SECONDS)
        page.screenshot(path=_ROOT / "sandbox" / "dashboard.png")


def draw_learning() -> None:
    """Draw the page while CartPole is learnt, until the run has ended."""
    frames = []
    with _shown_run(_LEARNING, height=1180) as (page, _, run):
        page.wait_for_selector("canvas", timeout=60_000)
        while run.poll() is None:
            began = time.monotonic()
            frames.append(page.screenshot())
            time.sleep(max(0.0, _FRAME_SECONDS - (time.monotonic() - began)))
        page.wait_for_timeout(4000)
        frames.append(page.screenshot())
    shown = [Image.open(io.BytesIO(each)).convert("RGB") for each in frames]
    size = (_WIDTH, round(shown[0].height * _WIDTH / shown[0].width))
    colours = shown[-1].resize(size).quantize(_COLOURS)
    first, *rest = [each.resize(size).quantize(palette=colours, dither=0) for each in shown]
    first.save(
        _ROOT / "sandbox" / "learning.gif",
        save_all=True,
        append_images=rest,
        duration=[1000 * _SHOWN_SECONDS] * len(rest) + [1000 * _LAST_SECONDS],
        loop=0,
        optimize=True,
    )


if __name__ == "__main__":
    if "--learning" in sys.argv:
        draw_learning()
    else:
        draw_page()
