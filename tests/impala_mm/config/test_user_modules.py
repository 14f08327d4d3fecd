"""Users' modules are found in the current folder, and the examples of an installed package last."""

import sys

from impala_mm.config import user_modules


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
