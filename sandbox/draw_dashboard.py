"""Make dashboard.png, the picture of dashboard.md: the page of a run that this script starts.

    python sandbox/draw_dashboard.py [SECONDS]

The run lasts a minute by default, and one of its actors is killed on the way. The picture is taken
by the system's Chromium.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

_ROOT = Path(__file__).resolve().parent.parent
_RUN = (
    *("--level_name=CartPole-v1", "--num_learners=2", "--num_actors=4", "--stop_at_return=1000"),
    *("--max_seconds=1e6", "--save_checkpoint_secs=60", "--seed=1"),
)
_SIZE = {"width": 1280, "height": 1480}


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


def _take_picture(address: str, path: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        page = browser.new_page(viewport=_SIZE)
        page.goto(address)
        page.click(".runs tbody a")
        page.wait_for_selector(".part-hosts canvas")
        page.wait_for_timeout(5000)
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    """Start the run and a dashboard, wait, and take the picture."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as runs:
        logdir = Path(runs) / "cartpole"
        run = _start(*_RUN, f"--logdir={logdir}", folder=folder)
        dashboard = _start("--dashboard", f"--logdir={runs}", folder=folder)
        try:
            time.sleep(0.6 * seconds)
            _kill_actor(logdir)
            time.sleep(0.4 * seconds)
            assert dashboard.stdout
            address = re.search(r"http://\S+", dashboard.stdout.readline())
            assert address, "the dashboard printed no address"
            _take_picture(address[0], _ROOT / "sandbox" / "dashboard.png")
        finally:
            for process in (run, dashboard):
                os.killpg(process.pid, signal.SIGTERM)
                process.communicate()


if __name__ == "__main__":
    main()
