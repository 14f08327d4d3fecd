"""Draw sandbox/status.svg and sandbox/tmux.svg: the status table and tmux session of a real run.

python sandbox/cluster_pictures.py [FOLDER]      takes half a minute, then stops the run
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.follow import status
from launcher.supervise.run_registry import Run

_ROOT = Path(__file__).resolve().parent.parent
_NAME = "pictured"
_WIDTH = 180


def main() -> None:
    """Start a run, draw its status table and its tmux session, and stop the run."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else _ROOT / "sandbox"
    with tempfile.TemporaryDirectory() as work:
        os.environ |= {"XDG_STATE_HOME": f"{work}/state", "TMUX_TMPDIR": work}
        os.environ.pop("TMUX", None)  # within tmux it would name the user's own server
        frontend = [sys.executable, _ROOT / "run_experiment_mm_raw.py", f"--tmux_sess={_NAME}"]
        example = f"--workers_csv_path={_ROOT / 'workers.csv.example'}"
        flags = ["--level_name=catch", "--stop_at_return=2", "--batch_size=4"]
        subprocess.run(
            [*frontend, example, *flags, f"--logdir={work}/catch", "--detach"], check=True
        )
        try:
            run, until = Run(_NAME), time.monotonic() + 90
            while status.snapshot(run).get("episode_return") is None and time.monotonic() < until:
                time.sleep(1)
            time.sleep(10)
            known = status.snapshot(run) | {"logdir": "runs/catch"}
            _write_svg(
                folder / "status.svg", "--status", status.picture(known, 20, Console(width=_WIDTH))
            )
            _write_svg(folder / "tmux.svg", f"tmux attach -t {_NAME}", _capture_session(work))
        finally:
            subprocess.run([*frontend, "--stop"], check=True)
            subprocess.run(["tmux", "kill-server"], check=False, capture_output=True)


def _capture_session(work: str) -> Text:
    """Return the contents of the learners' window, with tmux's status line below it."""
    shown = (
        _run_tmux("capture-pane", "-e", "-p", "-t", f"{_NAME}:learners").rstrip().splitlines()[-18:]
    )
    names = _run_tmux("list-windows", "-t", _NAME, "-F", "#{window_index}:#{window_name}").split()
    text = Text.from_ansi("\n".join(shown).replace(work, "runs"))
    text.append("\n" + f"[{_NAME}] {' '.join(names)}".ljust(_WIDTH), style="black on green")
    return text


def _run_tmux(*arguments: str) -> str:
    finished = subprocess.run(["tmux", *arguments], capture_output=True, text=True, check=True)
    return finished.stdout


def _write_svg(path: Path, title: str, shown: object) -> None:
    console = Console(record=True, width=_WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(shown)
    svg = console.export_svg(title=title, unique_id=path.stem)
    # Remove the web fonts: every viewer has a monospaced font of its own.
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
