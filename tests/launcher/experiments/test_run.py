"""Experiments as their command runs them: what is started, and what is refused before a start."""

import os
import re
from pathlib import Path

_PAGE = Path(__file__).parents[3] / "sandbox" / "sweeps.md"


def test_the_population_of_the_page_has_room_on_two_cores(cluster, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    files = re.findall(r"```toml\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    (population,) = [text for text in files if '"population"' in text]
    (cluster.folder / "population.toml").write_text(population)
    code, printed = cluster.ask("--experiment=population.toml", "--dry_run")
    assert code == 0, printed
    assert re.findall(r"# trial (\d): .*: on localhost", printed) == ["0", "1", "2", "3"]
