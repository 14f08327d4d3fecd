"""Users' modules are found in the current folder, and the examples of an installed package last."""

import sys

import pytest

from impala_mm.config import command_line, user_modules
from impala_mm.config.settings import Config


def test_an_installed_package_finds_its_own_examples_after_all_else(tmp_path, monkeypatch):
    for place, value in (("project", 1), ("here", 2)):
        folder = tmp_path / place / "examples_of_a_test"
        folder.mkdir(parents=True)
        (folder / "in_both.py").write_text(f"place = {value}")
    (tmp_path / "project" / "shipped_only.py").write_text("place = 1")
    monkeypatch.setattr(user_modules, "SHIPPED", tmp_path / "project")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path / "here")
    assert user_modules.import_module("shipped_only").place == 1
    assert user_modules.import_module("examples_of_a_test.in_both").place == 2


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, whose modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(user_modules, "_imported", {})
    return tmp_path


@pytest.mark.parametrize(
    "argument", ["--import=one_m, two_m", "--config=flags.toml", "--flagfile=flags"]
)
def test_flags_import_modules_before_others_are_read(here, argument):
    names = ["one_m", "two_m"]
    for name in names:
        (here / f"{name}.py").write_text("")
        sys.modules.pop(name, None)
    (here / "flags.toml").write_text('imports = ["one_m", "two_m"]')
    (here / "flags").write_text("--imports=one_m,two_m")
    command_line.parse(["experiment.py", argument], "", Config)
    assert user_modules.imported().split(",") == names
    assert all(name in sys.modules for name in names)


def test_what_cannot_be_imported_is_refused_with_the_traceback_of_its_code(here, capsys):
    (here / "broken_import.py").write_text("def fail():\n    raise ValueError('no luck')\nfail()")
    with pytest.raises(SystemExit) as ended:
        command_line.parse(["experiment.py", "--import=broken_import"], "", Config)
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert 'broken_import.py", line 2, in fail\n' in printed
    assert "--import=broken_import: " in printed
    with pytest.raises(SystemExit):
        command_line.parse(["experiment.py", "--import=broken_imports"], "", Config)
    assert "--import=broken_imports" in capsys.readouterr().err
