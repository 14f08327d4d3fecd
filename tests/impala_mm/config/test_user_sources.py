"""The files of users' modules, which --deploy copies and a run's folder keeps."""

import sys

import pytest

from impala_mm.config import user_sources
from impala_mm.config.settings import Config
from impala_mm.records import source_copy


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    files = {
        "mine.py": "import os, nets, mine_networks\nfrom numpy import array",
        "mine_settings.py": "",
        "mine_networks.py": "def f():\n    from deeper import parts",
        "deeper/parts.py": "",
        "unrelated.py": "",
        "box/__init__.py": "",
        "box/inner/ppo.py": "from .. import data",
        "box/weights.bin": "x" * 2_000_000,
        "box/__pycache__/x.pyc": "",
        "box/.git/head": "",
        "levels_of_mine.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_modules_files_are_its_own_its_settings_and_what_it_imports_beside_it(here):
    found = user_sources.of_run(Config(algorithm="mine"))
    assert found.keys() == {"mine.py", "mine_settings.py", "mine_networks.py", "deeper/parts.py"}
    assert found["deeper/parts.py"] == here / "deeper" / "parts.py"


def test_a_packages_files_are_all_in_its_folder_and_levels_bring_their_modules(here):
    level = "gym:levels_of_mine:A-v0, catch"
    found = user_sources.of_run(Config(algorithm="box.inner.ppo", level_name=level))
    own = {"box/__init__.py", "box/inner/ppo.py", "box/weights.bin"}
    assert found.keys() == own | {"levels_of_mine.py"}
    assert user_sources.of_run(Config()) == {}
    assert user_sources.of_run(Config(algorithm="gone", level_name="gone:A-v0")) == {}


def test_teachers_that_are_functions_bring_their_modules_and_folders_do_not(here):
    config = Config.of_algorithm("impala")
    (here / "deeper:parts").mkdir()
    teacher = "box.inner.ppo:play, unrelated:lean, runs/old, deeper:parts, numpy:argmax"
    found = user_sources.of_run(config(teacher=teacher))
    own = {"box/__init__.py", "box/inner/ppo.py", "box/weights.bin"}
    assert found.keys() == own | {"unrelated.py"}


def test_levels_of_packages_installed_into_a_folder_of_their_own_are_not_copied(here):
    assert user_sources.of_run(Config(level_name="box:A-v0")).keys() > {"box/__init__.py"}
    (here / "box-1.0.dist-info").mkdir()  # as `pip install --target` leaves it
    assert user_sources.of_run(Config(level_name="box:A-v0")) == {}


def test_a_folder_of_very_many_files_is_no_package_of_code(here, monkeypatch):
    monkeypatch.setattr(user_sources, "_MAX_FILES", 2)
    with pytest.raises(user_sources.TooManyFiles, match="box holds more than 2 files: move the"):
        user_sources.of_run(Config(algorithm="box.inner.ppo"))


def test_a_run_keeps_the_source_of_each_start_once_and_says_what_is_too_large(here):
    files = user_sources.of_run(Config(algorithm="box.inner.ppo"))
    copy, said = source_copy.keep(files, here / "run" / "source")
    kept = here / "run" / "source" / copy
    assert {str(p.relative_to(kept)) for p in kept.rglob("*") if p.is_file()} == {
        "box/__init__.py",
        "box/inner/ppo.py",
    }
    assert said.endswith("(2 files, 0.00 MB), without box/weights.bin, too large to be kept")
    assert source_copy.keep(files, here / "run" / "source")[0] == copy
    (here / "box" / "__init__.py").write_text("changed = 1")
    other, _ = source_copy.keep(files, here / "run" / "source")
    assert {path.name for path in (here / "run" / "source").iterdir()} == {copy, other}
    assert source_copy.keep({}, here / "run" / "none") == ("", "")
