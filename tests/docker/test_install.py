"""Set-up's errors name what is missing and how to fix it."""

import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import install
import package_sets
import pytest
from processes import ROOT, run
from steps import Problem


def test_a_python_without_tensorflow_wheels_is_refused_with_a_remedy(monkeypatch):
    install.check_python((3, 11))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Problem, match=r"this is Python 3\.9, .* 3\.11, 3\.12 or 3\.13: `apt-get"):
        install.check_python((3, 9))
    monkeypatch.setattr(shutil, "which", lambda name: name if name == "python3.12" else None)
    with pytest.raises(Problem, match=r"`make PYTHON=python3\.12`"):
        install.check_python((3, 14))


def test_too_little_disk_is_refused_before_anything_is_fetched(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(9e9, 8e9, 1e9))
    with pytest.raises(Problem, match=r"has 1\.0 GB free and set-up needs 3 GB: free some"):
        install.check_disk(Path("/somewhere"), "cpu")


def test_without_root_missing_system_packages_are_asked_for_by_name(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    install.install_system_packages("all")
    said = capsys.readouterr().out
    packages = {"g++": "g++", "tmux": "tmux", "sshd": "openssh-server", "ip": "iproute2"}
    for program, package in packages.items():
        assert f"{program} is missing, which " in said
        assert f"`apt-get install {package}` as root" in said


@pytest.mark.slow
def test_an_environment_of_another_folder_is_made_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(install, "ROOT", tmp_path)
    venv = tmp_path / ".venv"
    venv.mkdir()
    (venv / "leftover").touch()
    install.make_environment(venv, "cpu venv")
    assert "is broken, was moved, or is for another Python or kind" in capsys.readouterr().out
    assert not (venv / "leftover").exists()
    (venv / "kept").touch()
    install.make_environment(venv, "cpu venv")
    assert (venv / "kept").exists(), "a sound environment stays"
    install.make_environment(venv, "gpu venv")
    assert not (venv / "kept").exists(), "TensorFlow for GPUs does not go over that for CPUs"


@pytest.mark.parametrize("active", [{}, {"VIRTUAL_ENV": "/foreign", "PYTHONPATH": "/foreign"}])
def test_a_second_set_up_needs_neither_network_nor_time(active):
    """The environment is that of `make test`; variables of another one change nothing."""
    stamp = ROOT / ".venv" / "impala_mm.json"
    if (ROOT / ".venv").is_symlink():
        pytest.skip("the environment is another folder's, and would be set up for this one")
    if not stamp.exists():
        pytest.skip("these tests were not started by make test")
    before = stamp.read_text()
    # The Python that ran set-up; make's options other than the defaults are not tested.
    python = Path(sys.executable).resolve()
    offline = {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    code, printed = run(python, "docker/install.py", **active, **offline)
    assert code == 0, printed
    assert "installing" not in printed
    assert stamp.read_text() == before


def test_the_state_changes_with_the_lock_the_options_and_the_folder(tmp_path, monkeypatch):
    for name in ("constraints.lock", "pyproject.toml", "setup.py", *install._SCRIPTS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(install, "ROOT", tmp_path)
    options = {"device": "cpu", "mpi": "venv", "role": "all"}
    keys = [install.state_key(tmp_path / ".venv", options)]
    keys.append(install.state_key(tmp_path / "moved" / ".venv", options))
    keys.append(install.state_key(tmp_path / ".venv", options | {"device": "gpu"}))
    (tmp_path / "constraints.lock").write_text("numpy==9\n")
    keys.append(install.state_key(tmp_path / ".venv", options))
    assert len(set(keys)) == 4


def test_where_horovod_cannot_be_built_set_up_warns_and_goes_on(tmp_path, monkeypatch, capfd):
    fails = tmp_path / "docker" / "horovod_wheel.py"
    fails.parent.mkdir()
    fails.write_text("import sys; sys.exit('[set-up] no C++ compiler: `apt-get install g++`')")
    monkeypatch.setattr(install, "ROOT", tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    why_not = install.install_horovod(tmp_path / "venv", [])
    assert why_not == "no C++ compiler: `apt-get install g++`"


def test_the_optional_sets_that_set_up_installs_exist():
    declared = set(re.findall(r"^([a-z-]+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))
    for extras in package_sets.EXTRAS.values():
        assert set(extras) <= declared


@pytest.mark.parametrize(
    ("raised", "code", "printed"),
    [
        ("steps.Problem('no disk')", 1, "[set-up] no disk\n"),
        ("OSError('no file')", 1, "[set-up] no file\n"),
        ("KeyboardInterrupt", 130, "\n[set-up] interrupted; the same command continues\n"),
    ],
)
def test_a_set_up_program_ends_with_one_line_about_what_is_wrong(raised, code, printed):
    program = f"""
import steps
def main(argv):
    assert argv == ["--flag"]
    raise {raised}
steps.run_program(main, OSError)
"""
    assert run(sys.executable, "-c", program, "--flag", cwd=ROOT / "docker") == (code, printed)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        (["setup"], []),
        (["setup", "LEARNERS=1"], ["--role=single"]),
        (["setup", "WHEELHOUSE=here"], ["--wheelhouse=here"]),
        (["horovod"], ["--role=all", "--again"]),
        (["docs"], ["--docs"]),
        (["train", "DEVICE=gpu", "MPI=system"], ["--device=gpu", "--mpi=system"]),
    ],
)
def test_make_passes_the_options_that_were_given(command, options):
    variables = {k: v for k, v in os.environ.items() if k not in {"DEVICE", "MPI", "LEARNERS"}}
    made = ["make", "--dry-run", *command]
    printed = subprocess.run(made, cwd=ROOT, env=variables, capture_output=True, check=True).stdout
    line = printed.decode().replace("\\\n", " ").split("docker/install.py")[1].splitlines()[0]
    assert line.split() == options


@pytest.fixture
def set_up(tmp_path, monkeypatch):
    """Return a function that sets up an empty folder; it returns what was installed."""
    for name in ("constraints.lock", "pyproject.toml", "setup.py", *install._SCRIPTS):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    installed = []

    def install_python_packages(venv, role, device, mpi, wheelhouse, *more):
        installed.append(" ".join([role, device, mpi, *more]))
        if (tmp_path / "interrupt").exists():
            raise KeyboardInterrupt

    def install_horovod(venv, arguments):
        installed[-1] += " horovod"
        return ""

    for stub in (install_python_packages, install_horovod):
        monkeypatch.setattr(install, stub.__name__, stub)
    monkeypatch.setattr(install, "ROOT", tmp_path)
    monkeypatch.setattr(install, "make_environment", lambda venv, kind: venv.mkdir(exist_ok=True))
    monkeypatch.setattr(install, "install_system_packages", lambda role, fetch: None)

    def call(*arguments):
        installed.clear()
        install.main(arguments)
        return ", ".join(installed) or None

    return call


SINGLE, ALL = "single cpu venv", "all cpu venv horovod"


def test_the_next_set_up_installs_what_the_last_one_was_asked_for(set_up, tmp_path, capsys):
    assert set_up("--role=single") == SINGLE
    assert "compiles Horovod" not in capsys.readouterr().out
    assert set_up() is None
    with (tmp_path / "constraints.lock").open("a") as lock:
        lock.write("newer==1\n")
    assert set_up() == SINGLE
    assert set_up("--role=all") == ALL
    assert "`make setup LEARNERS=1`" in capsys.readouterr().out
    assert set_up() is None
    (tmp_path / "interrupt").touch()
    with pytest.raises(KeyboardInterrupt):
        set_up("--role=single")
    (tmp_path / "interrupt").unlink()
    assert set_up() == SINGLE
    assert set_up("--mpi=system") == "single cpu system"
    assert set_up() is None


def test_the_sites_packages_are_installed_once_for_each_state_of_the_lock(set_up, tmp_path):
    assert set_up("--role=single") == SINGLE
    assert set_up("--docs") == f"{SINGLE} docs"
    assert set_up("--docs") is None
    assert set_up() is None
    with (tmp_path / "constraints.lock").open("a") as lock:
        lock.write("newer==1\n")
    assert set_up("--docs") == f"{SINGLE}, {SINGLE} docs"
