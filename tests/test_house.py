"""Who may import whom, and what the repository ships."""

import ast
import subprocess
import sys

from processes import ROOT, run

from impala_mm.runtime import heartbeat
from launcher.node import task

# A module of the left may import the project's modules of the right, besides its own package.
ALLOWED = {
    "impala_mm": {"nets"},
    "nets": set(),
    "launcher": {"impala_mm.flags"},
    "experiment": {"impala_mm"},
    "run_experiment_mm_raw": {
        *("launcher", "impala_mm.flags", "impala_mm.config"),
        *("impala_mm.run_folder", "impala_mm.ports"),
    },
}


def _imports(source):
    """Every module that a file imports, as `package.module`, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_parts_of_the_house_know_each_other_as_the_design_says():
    seen = 0
    for part, allowed in ALLOWED.items():
        folder = ROOT / part
        for path in folder.rglob("*.py") if folder.is_dir() else [ROOT / f"{part}.py"]:
            for name in _imports(path.read_text()):
                if name.split(".")[0] not in ALLOWED or name.split(".")[0] == part:
                    continue
                seen += 1
                assert any(f"{name}.".startswith(f"{a}.") for a in allowed), (
                    f"{path} imports {name}"
                )
    assert seen > 5


def test_supervisors_and_processes_mean_the_same_heartbeat():
    """They know each other by this name alone."""
    assert task.HEARTBEAT == heartbeat.VARIABLE


def test_the_pictures_are_what_their_script_draws(tmp_path):
    code, printed = run(sys.executable, "sandbox/draw.py", tmp_path)
    assert code == 0, printed
    for name in ("processes.svg", "step.svg"):
        assert (tmp_path / name).read_text() == (ROOT / "sandbox" / name).read_text()


def test_every_locked_package_has_a_version_and_a_checksum():
    lines = (ROOT / "constraints.lock").read_text().splitlines()
    packages = [i for i, line in enumerate(lines) if line[:1].isalpha()]
    assert len(packages) > 80
    for i in packages:
        assert "==" in lines[i]
        assert "--hash=sha256:" in lines[i + 1]


def test_the_scripts_in_bash_parse():
    for script in (ROOT / ".ci" / "run", ROOT / "launcher" / "plan" / "slurm_job.sh"):
        subprocess.run(["bash", "-n", script], check=True)
