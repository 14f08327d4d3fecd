"""The folders of small runs as today's code writes them, and the variables that it reads in them.

    .venv/bin/python -m tests.recorded.runs NAME ...        train again, and write all of it anew
    .venv/bin/python -m tests.recorded.runs                 read the folders again: runs.json

`test_runs.py` compares. Without a reason do not write folders anew: that they are old is their use.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from impala_mm.algorithms import agent
from impala_mm.config.settings import Config
from impala_mm.records import checkpoint, run_checkpoints
from impala_mm.records.checkpoint import all_in
from tests.recorded import record
from tests.recorded.cases import RUNS, SMALL_RUN, RunCase

FOLDERS, ROOT = record.HERE / "folders", record.HERE.parents[1]
_KEPT = ("checkpoints", "own", "settings.json", "starts.jsonl")  # what a resumed run reads
VARIABLES, CONTENTS = record.HERE / "runs.json", record.HERE / "contents.json"


def train(case: RunCase) -> None:
    """Write the folder of a run, and what is in its files."""
    temporary = Path("build", "recorded", case.name)  # relative, so that it is so in its files
    shutil.rmtree(ROOT / temporary, ignore_errors=True)
    flags = flags_of(case) | {"logdir": temporary}
    command = [sys.executable, "experiment.py", *(f"--{name}={x}" for name, x in flags.items())]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    made, folder = ROOT / temporary, FOLDERS / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in _KEPT:
        if (made / name).is_dir():
            shutil.copytree(made / name, folder / name)
        elif (made / name).exists():
            text = (made / name).read_text().replace(f"{ROOT}/", "")
            (folder / name).write_text(text)
    known = json.loads(CONTENTS.read_text()) if CONTENTS.exists() else {}
    known |= {case.name: contents(made)}
    ordered = {each.name: known[each.name] for each in RUNS if each.name in known}
    CONTENTS.write_text(json.dumps(ordered, indent=1) + "\n")


def flags_of(case: RunCase) -> dict[str, Any]:
    """Return the flags of a run but its folder."""
    return SMALL_RUN | {"learner_hosts": "127.0.0.1:0"} | case.flags


def contents(folder: Path) -> dict[str, Any]:
    """Return the names of a run's files, and the keys of its rows and of its descriptions."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    about = json.loads((all_in(folder / "checkpoints")[-1] / "about.json").read_text())
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {
        "files": sorted({_without_numbers(n) for n in files if not n.startswith(_SOMETIMES)}),
        "metrics": sorted(set().union(*rows) - _OF_GAMES),
        "checkpoint": sorted(about),
        "made_of": about["made_of"],
    }


# What a short run has only if a game ends in it, if the code was changed, or if it waits for long.
_OF_GAMES = {"episode_length", "episode_return", "games", "shaped_return", "verdict"}
_SOMETIMES = ("code-", "hosts.jsonl")  # beginnings of files


def _without_numbers(name: str) -> str:
    """Return a file's name without what differs from run to run."""
    parts = ["UPDATE" if len(part) == 10 and part.isdecimal() else part for part in name.split("/")]
    return "/".join("EVENTS" if part.startswith("events.out") else part for part in parts)


def load(folder: Path) -> dict[str, list[list[float]]]:
    """Return a summary of each variable of a run, as a resumed learner reads it."""
    about = checkpoint.verify(all_in(folder / "checkpoints")[-1])
    kind = Config.of_algorithm(about.settings["algorithm"])
    names = kind.__dataclass_fields__.keys() & about.settings.keys()
    config = kind(**{name: about.settings[name] for name in names})
    variables = agent.make_agent(config, number=0).algorithm.variables
    run_checkpoints.Checkpoints(folder, variables, keep=1).restore(print, lambda _: None)
    by_key = record.by_key(variables)
    return {key: [record.summary(key, variable.numpy())] for key, variable in by_key.items()}


if __name__ == "__main__":
    for each in RUNS:
        if each.name in sys.argv[1:]:
            train(each)
    record.write(VARIABLES, {each.name: load(FOLDERS / each.name) for each in RUNS})
