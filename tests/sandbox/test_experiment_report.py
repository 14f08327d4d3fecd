"""The report of an experiment, from its journal and the folders of its trials."""

import html
import re
import tomllib

from launcher.experiments.file import Axis, Experiment
from launcher.experiments.journal import Journal
from launcher.experiments.trial import Trial
from tests.sandbox.test_plot import row, write


def _make(folder, levels):
    """Write an experiment of two rates, two levels and three seeds, whose last trial is pruned."""
    axes = {"learning_rate": Axis("choices", [0.1, 0.2]), "seed": Axis("choices", [1, 2, 3])}
    experiment = Experiment("sweep.toml", folder, {"batch_size": 4}, axes, "grid")
    (folder / "trials").mkdir(parents=True)
    journal = Journal(folder)
    number = 0
    for level in levels:
        for rate in (0.1, 0.2):
            for seed in (1, 2, 3):
                values = {"learning_rate": rate, "seed": seed, "level_name": level}
                trial = Trial(experiment, number, values)
                journal.write("asked", trial=number, values=values)
                trial.score = 100 * rate + seed
                rows = [row(4000.0 * at, 5.0 * at, trial.score * at / 10) for at in range(1, 11)]
                write(trial.folder, rows, **values)
                (trial.folder / "trial.toml").write_text(trial.describe_settings())
                is_last = seed == 3 and rate == 0.1
                journal.write_trial("pruned" if is_last else "ended", trial)
                number += 1
    return folder


def test_the_best_values_are_named_with_their_interval_and_as_a_file(tmp_path, results):
    folder = _make(tmp_path / "sweep", ["catch", "memory"])
    code, printed = results("report", folder)
    assert code == 0, printed
    assert "| catch | learning_rate=0.1 | 2 | 11.500 (11.000 to 12.000)" in printed
    assert "| catch | learning_rate=0.2 | 3 | 22.000 (" in printed
    both = next(line for line in printed.splitlines() if line.startswith("| all") and "0.2" in line)
    # Of returns from 11 to 23 in both levels: 21, 22, 23 twice; a quarter of six is one.
    assert "| 6 | 0.917 (0.8" in both
    page = (folder / "report.html").read_text()
    assert "catch: <b>learning_rate=0.2</b>, return 22.00 (" in page
    best = html.unescape(re.search("<pre>([^<]*)", page)[1])
    values = {"batch_size": 4, "learning_rate": 0.2, "level_name": "catch"}
    assert tomllib.loads(best) == values
    assert "pruned" in page
    assert "<svg" in page


def test_a_trial_that_ended_without_a_return_is_in_the_table_alone(tmp_path, results):
    folder = _make(tmp_path / "sweep", ["catch"])
    journal = Journal(folder)
    journal.write("failed", trial=5, why="it had no memory")
    journal.write("started", trial=5)
    journal.write("ended", trial=5, frames=40, score=None)
    write(folder / "trials" / "005", [{"frames": 40.0, "seconds": 1.0}], level_name="catch")
    code, printed = results("report", folder)
    assert code == 0, printed
    assert "| catch | learning_rate=0.2 | 2 | 21.500 (" in printed
    assert "no memory" not in (folder / "report.html").read_text()
