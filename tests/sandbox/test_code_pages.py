"""The pages of the site that are written from the code name all that the code has."""

import contextlib
import dataclasses
import importlib
import re
import sys

from processes import ROOT

from impala_mm.config.algorithm_settings import BUILT_IN, settings_type
from impala_mm.config.flags import info, infos
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import COLUMNS

sys.path.append(str(ROOT / "sandbox" / "site"))

import code_pages

PAGES = code_pages.pages()


def _flag(name, page=code_pages.FLAGS, text=""):
    """Return what the page says about the flag of this name and text."""
    entries = re.split(r"^#+ ", PAGES[page].replace("\\", ""), flags=re.MULTILINE)
    found = [each for each in entries if each.startswith(f"`--{name}` ") and text in each]
    assert len(found) == 1, f"--{name} is {len(found)} times on {page}"
    return found[0]


def test_every_flag_is_explained():
    for algorithm in BUILT_IN:
        for f in dataclasses.fields(settings_type(algorithm, Config)):
            said = _flag(f.name, text=info(f).text)
            assert all(f"`{choice}`" in said for choice in info(f).choices if choice)
            having = said.splitlines()[2].partition("; of ")[2]
            assert not having or re.search(rf"\b{algorithm}\b", having)
    for f in dataclasses.fields(LauncherConfig):
        assert _flag(f.name, code_pages.FRONTEND, text=info(f).text)


def test_a_flag_has_the_default_of_each_algorithm_its_range_and_its_algorithms():
    facts = _flag("unroll_length").splitlines()[2]
    assert facts.startswith("Default `20`; `128` for ppo, vpg, awr, vmpo; `64` for ppo on Atari")
    assert facts.endswith("; at least 1.")
    assert "; of " not in _flag("seed")
    assert "; of sac." in _flag("temperature", text="Weight of the entropy")
    assert "; of awr." in _flag("temperature", text="behaviour cloning")
    assert "may be `auto`" in _flag("num_envs")


def test_every_column_of_the_csv_is_explained():
    rows = re.findall(r"^\| (`.*?) \| (\S.*) \|$", PAGES["reference/csv.md"], re.MULTILINE)
    names = [name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(names) == sorted(COLUMNS)


def test_the_files_of_a_runs_folder_are_those_that_its_readme_lists():
    rows = dict(
        re.findall(r"^\| `(.*)` \| (\S.*) \|$", PAGES["reference/run_folder.md"], re.MULTILINE)
    )
    assert {"metrics.jsonl", "videos/`, `export/`, `report.html"} <= rows.keys()
    assert len(rows) == 17


def test_the_page_of_commands_has_the_targets_of_make_and_the_frontends_commands():
    page = PAGES["reference/commands.md"]
    modes = infos(Config)["mode"].choices
    listed = re.findall(r"^\| `--mode=(\w+)` \| [A-Z].*\. \|$", page, re.MULTILINE)
    assert sorted(listed) == sorted(modes)
    for command in ("make train", "make docs", "--status", "--logs=...", "impala-mm wheelhouse"):
        assert command in page


def test_the_public_names_of_python_exist():
    blocks = re.findall(
        r"^::: (\S+)((?:\n .*|\n(?= ))*)", PAGES["reference/python.md"], re.MULTILINE
    )
    assert len(blocks) > 30
    named = {name: re.findall(r"- (\w+)", options) for name, options in blocks}
    assert "Run" in named or "impala_mm.from_python.run.Run" in named
    for name, members in named.items():
        found = _find(name)
        for member in members:
            assert hasattr(found, member), f"CONTRIBUTING.md: {name} has no {member}"


def _find(name):
    """Return the module, class or function of a dotted name."""
    with contextlib.suppress(ModuleNotFoundError):
        return importlib.import_module(name)
    above, _, last = name.rpartition(".")
    return getattr(_find(above), last)
