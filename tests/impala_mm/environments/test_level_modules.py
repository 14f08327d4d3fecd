"""A level's module is searched as `python -m` searches it, and an error says where and why."""

import os
import subprocess
import sys

import gymnasium
import pytest
from processes import ROOT

from impala_mm.config.messages import users_traceback
from impala_mm.environments.make import find_level
from impala_mm.environments.types import BadLevel

MODULE = """
import gymnasium
gymnasium.register("{name}", "broken_levels:Works")
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))


def _refusal(level_name):
    with pytest.raises(BadLevel) as refused:
        find_level(level_name)
    assert "\n" not in str(refused.value)
    return refused.value


def test_the_current_folder_is_searched_first(tmp_path, monkeypatch):
    for folder, name in (("here", "Here-v0"), ("there", "There-v0")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twice_named.py").write_text(MODULE.format(name=name))
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend(tmp_path / "there")
    assert find_level("twice_named:Here-v0")
    assert "There-v0" not in gymnasium.registry


@pytest.mark.slow
def test_a_program_in_another_folder_finds_the_modules_of_the_current_one_and_of_pythonpath(
    tmp_path,
):
    for folder in ("here", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"of_{folder}.py").write_text(MODULE.format(name=f"{folder}-v0"))
    variables = os.environ | {"PYTHONPATH": f"{ROOT / 'tests/helpers'}{os.pathsep}../path"}
    ran = subprocess.run(
        [
            *(sys.executable, ROOT / "experiment.py", "--num_actors=2"),
            *("--max_seconds=60", "--total_environment_frames=4000"),
            *("--level_name=of_here:here-v0,of_path:path-v0", f"--logdir={tmp_path / 'run'}"),
        ],
        cwd=tmp_path / "here",
        env=variables,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "mean return 10.00" in ran.stdout


def test_a_missing_module_names_the_folders_that_were_searched(tmp_path, monkeypatch):
    (tmp_path / "my_corridors.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}{os.pathsep}/nowhere")
    sys.path += [str(ROOT / "tests"), "/nowhere"]
    said = str(_refusal("my_coridors:Long-v0"))
    for part in (
        f"no module named 'my_coridors' was found in {tmp_path} (the current",
        f"{ROOT / 'tests'} (PYTHONPATH)",
        "/nowhere (PYTHONPATH, but there is no such folder)",
        "site-packages (installed packages)",
        "did you mean my_corridors:Long-v0?",
    ):
        assert part in said
    (tmp_path / "a_package").mkdir()
    (tmp_path / "a_package" / "__init__.py").touch()
    said = str(_refusal("a_package.levels:Long-v0"))
    assert f"a_package was found at {tmp_path}/a_package/__init__.py, but it has no mod" in said


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit('usage: ...')", "SystemExit: usage: ..."),
    ],
)
def test_a_module_that_raises_is_shown_with_its_path_and_its_own_frames(
    tmp_path, monkeypatch, text, raised
):
    (tmp_path / "raises_it.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    error = _refusal("raises_it:Any-v0")
    path = tmp_path / "raises_it.py"
    assert f"raises_it was found at {path}, but cannot be imported" in str(error)
    assert raised in str(error)
    shown = users_traceback(error.__cause__)
    assert f'File "{path}", line 1' in shown
    assert shown.count("  File ") == 1
    assert shown.splitlines()[-1].startswith(raised)


def test_a_module_that_does_not_register_the_id_is_named_with_what_it_registers(
    tmp_path, monkeypatch
):
    (tmp_path / "registers_none.py").touch()
    monkeypatch.chdir(tmp_path)
    said = str(_refusal("registers_none:Mine-v0"))
    assert f"registers_none was imported from {tmp_path}/registers_none.py, but it does not" in said
    assert 'it must call gymnasium.register("Mine-v0", ...)' in said
    assert "did you mean faulty_levels:NoSeed-v0 or " in str(_refusal("faulty_levels:NoSed-v0"))
    said = str(_refusal("faulty_levels:xyz"))
    assert "it registers NoActionSpace-v0, Sound-v0, ResetRaises-v0" in said
