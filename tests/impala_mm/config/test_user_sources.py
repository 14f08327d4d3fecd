"""The files of users' modules, which --deploy copies and a run's folder keeps."""

import sys

import pytest

from impala_mm.config import user_modules, user_sources
from impala_mm.config.settings import Config
from impala_mm.records import run_folder


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
        "names.py": "register('mine', 'placed.inner:Mine')",
        "placed/inner.py": "",
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
    assert user_sources.of_run(Config(imports="levels_of_mine, unrelated")).keys() == {
        "levels_of_mine.py",
        "unrelated.py",
    }
    names = user_sources.of_run(Config(imports="names")).keys()
    assert names == {"names.py", "placed/inner.py"}, "they are imported when they are first used"
    assert user_sources.of_run(Config()) == {}
    assert user_sources.of_run(Config(algorithm="gone", level_name="gone:A-v0")) == {}


def test_teachers_and_opponents_that_are_functions_bring_their_modules_and_folders_do_not(here):
    config = Config.of_algorithm("impala")
    (here / "deeper:parts").mkdir()
    teacher = "box.inner.ppo:play, unrelated:lean, runs/old, deeper:parts, numpy:argmax"
    found = user_sources.of_run(config(teacher=teacher))
    own = {"box/__init__.py", "box/inner/ppo.py", "box/weights.bin"}
    assert found.keys() == own | {"unrelated.py"}
    opponents = "past:0.5,random,box.inner.ppo:play:0.5,unrelated:lean,runs/old,deeper:parts:2"
    assert user_sources.of_run(config(opponents=opponents)).keys() == found.keys()


def test_levels_of_packages_installed_into_a_folder_of_their_own_are_not_copied(here):
    assert user_sources.of_run(Config(level_name="box:A-v0")).keys() > {"box/__init__.py"}
    (here / "box-1.0.dist-info").mkdir()  # as `pip install --target` leaves it
    assert user_sources.of_run(Config(level_name="box:A-v0")) == {}


def test_a_folder_of_very_many_files_is_no_package_of_code(here, monkeypatch):
    monkeypatch.setattr(user_sources, "_MAX_FILES", 2)
    with pytest.raises(user_sources.TooManyFiles, match="box holds more than 2 files"):
        user_sources.of_run(Config(algorithm="box.inner.ppo"))


@pytest.fixture
def forget():
    """Let the modules that a test imports be forgotten."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_run_keeps_the_imported_modules_beside_those_that_its_flags_name(here, forget):
    venv = here / ".venv" / "lib"
    venv.mkdir(parents=True)
    (venv / "of_venv.py").touch()
    sys.path.append(str(venv))
    for name in ("data.py", "unused.py"):
        (here / "box" / name).touch()
    for name in ("box.inner.ppo", "unrelated", "of_venv"):
        user_modules.import_module(name)
    config = Config(algorithm="box.inner.ppo", level_name="numpy:A-v0")
    found = user_sources.imported(config)
    own = {"box/__init__.py", "box/data.py", "box/inner/ppo.py"}
    assert found.keys() == own | {"unrelated.py"}
    assert found["box/inner/ppo.py"] == here / "box" / "inner" / "ppo.py"
    assert user_sources.imported(Config()) == {}
    (here / "box-1.0.dist-info").mkdir()  # as `pip install --target` leaves it
    assert user_sources.imported(config).keys() == own
    assert user_sources.imported(Config(level_name="box:A-v0")) == {}


def test_a_run_keeps_the_source_of_each_start_once_and_says_what_is_too_large(here, monkeypatch):
    kept = here / "run" / "source"
    files = user_sources.of_run(Config(algorithm="box.inner.ppo"))
    copy, said = run_folder.keep(files, kept)
    found = {str(p.relative_to(kept / copy)) for p in kept.rglob("*") if p.is_file()}
    assert found == {"box/__init__.py", "box/inner/ppo.py"}
    assert "without box/weights.bin" in said
    assert run_folder.keep(files, kept)[0] == copy
    (here / "box" / "__init__.py").write_text("changed = 1")
    other, _ = run_folder.keep(files, kept)
    assert {path.name for path in kept.iterdir()} == {copy, other}
    assert run_folder.keep({}, here / "run" / "none") == ("", "")
    monkeypatch.setattr(run_folder, "MAX_FILES", 2)
    bounded, said = run_folder.keep(files | {"u.py": here / "unrelated.py"}, here / "bounded")
    assert len([p for p in (here / "bounded" / bounded).rglob("*") if p.is_file()]) == 2
    assert "without box/weights.bin and 1 more" in said
