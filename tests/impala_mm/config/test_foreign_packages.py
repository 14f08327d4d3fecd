"""Packages of others that are called `nets` or `launcher` are refused by name."""

import os
import shutil
import sys

import pytest
from processes import ROOT, run

from impala_mm import errors
from impala_mm.config import flags, user_modules


@pytest.mark.parametrize(
    ("program", "file"),
    [("experiment.py", "launcher.py"), ("run_experiment_mm_raw.py", "nets/__init__.py")],
)
def test_a_foreign_package_in_the_current_folder_ends_the_programs(program, file, tmp_path):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('imported')")
    name = file.partition("/")[0]
    flags = ("--level_name=catch", "--validate")
    code, printed = run(sys.executable, ROOT / program, *flags, cwd=tmp_path)
    assert code == 2
    assert printed.startswith(f"error: {tmp_path / name} hides impala_mm's own package ")
    assert printed.count("\n") == 1


FROM_PYTHON = """
import sys, impala_mm
for call in ("train", "load_policy", "evaluate", "launch"):
    try:
        getattr(impala_mm, call)("catch")
    except impala_mm.errors.ForeignPackage as error:
        print(call, error)
assert "tensorflow" not in sys.modules
"""


def test_from_python_it_is_an_error_that_names_the_folder_to_leave_out(tmp_path):
    foreign = tmp_path / "libraries" / "nets"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").touch()
    paths = os.pathsep.join([str(foreign.parent), str(ROOT)])
    code, printed = run(sys.executable, "-c", FROM_PYTHON, cwd=tmp_path, PYTHONPATH=paths)
    assert code == 0, printed
    for call in ("train", "load_policy", "evaluate", "launch"):
        assert f"{call} {foreign} hides impala_mm's own package nets" in printed
    assert printed.count(f"remove {foreign.parent} from PYTHONPATH") == 4
    assert not (tmp_path / "runs").exists()


def test_a_module_that_was_imported_before_is_noticed(tmp_path):
    (tmp_path / "launcher.py").touch()
    code = (
        "import sys; import launcher; sys.path.remove(sys.argv[1]); import impala_mm;"
        "impala_mm.train('catch')"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    _, printed = run(sys.executable, "-c", code, tmp_path, cwd="/", PYTHONPATH=paths)
    assert f"ForeignPackage: {tmp_path}/launcher.py hides" in printed.splitlines()[-1]


def test_a_package_that_overwrote_ours_is_noticed(tmp_path, monkeypatch):
    for name in ("nets", "launcher"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "nets" / "__init__.py").write_text('"""Nets for fishing."""\n')
    monkeypatch.setattr(user_modules, "_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    overwritten = pytest.raises(errors.ForeignPackage, match=f"{tmp_path}/nets was overwritten")
    with flags.refusals_raised(), overwritten:
        user_modules.refuse_foreign()


def test_a_folder_of_data_is_no_package_where_ours_is_found(tmp_path, monkeypatch):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "weights.npz").touch()
    monkeypatch.chdir(tmp_path)
    user_modules.refuse_foreign()
