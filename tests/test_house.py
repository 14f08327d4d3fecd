"""The imports that are allowed, and the files that the repository ships."""

import ast
import contextlib
import re
import subprocess
import sys

import pytest
from processes import ROOT

from impala_mm.records import host_use, run_folder
from impala_mm.runtime import heartbeat, ports, starter
from launcher.supervise import task
from sandbox import code_size

# A package may import itself and the packages named here; "a.b" allows one module or package of a.
ALLOWED = {
    "experiment": "impala_mm launcher.supervise launcher.dashboard",
    "run_experiment_mm_raw": "launcher impala_mm.config impala_mm.runtime.lifecycle",
    "nets": "impala_mm.config.registry",
    # The library, from the lowest floor up; its own names are imported when they are accessed.
    "impala_mm": "config.errors config.messages from_python",
    "impala_mm.config": "",
    "impala_mm.runtime": "config",
    "impala_mm.environments": "config runtime",
    "impala_mm.data": "config environments",
    "impala_mm.distributed": "config runtime data",
    "impala_mm.replay": "config runtime data",
    "impala_mm.algorithms": "config runtime environments distributed data replay nets",
    "impala_mm.transport": "config.messages runtime data",
    "impala_mm.records": "config runtime data",
    "impala_mm.inference": "environments data algorithms transport",
    "impala_mm.actor": "config runtime environments data algorithms transport",
    "impala_mm.policy": "config environments data algorithms records",
    "impala_mm.learner": "config runtime environments distributed data algorithms replay "
    "transport records inference",
    "impala_mm.evaluation": "config runtime environments data records policy replay",
    "impala_mm.teachers": "config runtime environments data replay algorithms records policy "
    "evaluation nets",
    "impala_mm.jobs": "config runtime environments distributed data algorithms replay transport "
    "records actor policy learner evaluation teachers",
    "impala_mm.from_python": "config runtime environments records policy evaluation teachers",
    # The launcher, in the same order.
    "launcher": "",
    "launcher.supervise": "",
    "launcher.plan": "supervise impala_mm.config.environment_flags "
    "impala_mm.config.flags impala_mm.config.messages "
    "impala_mm.config.settings",
    "launcher.emit": "supervise plan impala_mm.config.flags impala_mm.config.registry "
    "impala_mm.runtime.certificates impala_mm.runtime.run_token",
    "launcher.hosts": "supervise plan impala_mm.config.messages impala_mm.runtime.timing",
    "launcher.follow": "supervise plan hosts impala_mm.config.flags impala_mm.config.messages "
    "impala_mm.runtime.certificates impala_mm.runtime.timing impala_mm.runtime.machine "
    "impala_mm.runtime.safe_files",
    "launcher.checks": "supervise plan hosts follow impala_mm.config.messages "
    "impala_mm.config.registry impala_mm.runtime.certificates impala_mm.runtime.ports "
    "impala_mm.transport.rounds",
    "launcher.dashboard": "supervise plan follow impala_mm.config.flags impala_mm.config.messages "
    "impala_mm.config.settings "
    "impala_mm.records.host_use impala_mm.records.metric_descriptions "
    "impala_mm.records.run_contents impala_mm.runtime.lifecycle impala_mm.runtime.safe_files",
    "launcher.experiments": "supervise plan hosts follow impala_mm.config.command_line "
    "impala_mm.config.errors impala_mm.config.flag_values impala_mm.config.flags "
    "impala_mm.config.messages impala_mm.config.registry impala_mm.config.setting_files "
    "impala_mm.config.settings impala_mm.records.checkpoint impala_mm.records.run_contents "
    "impala_mm.records.run_folder impala_mm.runtime.timing",
    "launcher.commands": "supervise plan hosts follow checks experiments emit "
    "impala_mm.config.command_line impala_mm.config.errors impala_mm.config.messages "
    "impala_mm.config.settings impala_mm.config.user_sources impala_mm.records.run_folder "
    "impala_mm.runtime.certificates impala_mm.runtime.run_token",
}


def _name(path):
    """Return a file's module name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path):
    """Yield (line, module or module.name) for all imports of a file, at any depth."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def _package(module):
    """Return the entry of the table to which a module, or a name in it, belongs."""
    parts = module.split(".")
    return next((".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in ALLOWED), None)


FILES = [
    path
    for top in ("experiment.py", "run_experiment_mm_raw.py", "nets", "impala_mm", "launcher")
    for path in ([ROOT / top] if top.endswith(".py") else sorted((ROOT / top).rglob("*.py")))
]


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_what_the_table_allows_and_no_more(package):
    library = package.partition(".")[0]
    named = [
        name if name.split(".")[0] in ALLOWED else f"{library}.{name}"
        for name in ALLOWED[package].split()
    ]
    found = set()
    for path in FILES:
        if _package(_name(path)) != package:
            continue
        for line, name in _imports(path):
            if _package(name) in {None, package}:
                continue
            allowed = next((each for each in named if f"{name}.".startswith(f"{each}.")), None)
            assert allowed, (
                f"{path.relative_to(ROOT)}:{line} imports {name}: {package} may import "
                f"{', '.join(named) or 'nothing of the project'}. Move what it needs to a package "
                f"that both may import, or make a protocol of it (CONTRIBUTING.md, packages)"
            )
            found.add(allowed)
    assert found == set(named), f"{package} does not import all that the table allows it"


def test_every_file_is_in_the_table():
    packages = {_package(_name(path)) for path in FILES}
    assert packages == set(ALLOWED)
    for folder in ("impala_mm", "launcher"):
        for path in (ROOT / folder).iterdir():
            if path.is_dir() and any(path.glob("*.py")):
                assert _name(path) in ALLOWED, f"{path.name}/ has no line in the table"


def test_no_file_imports_itself_by_way_of_others():
    """Imports within functions, or only for types, count too."""
    names = {_name(path) for path in FILES}
    arrows = {}
    for path in FILES:
        targets = set()
        for _, name in _imports(path):
            parts = name.split(".")
            above = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
            targets |= {next((each for each in above if each in names), _name(path))}
        targets.discard(_name(path))
        arrows[_name(path)] = targets
    with contextlib.suppress(StopIteration):
        while True:  # take out a file that imports none of those that are left
            free = next(name for name in arrows if not arrows[name] & arrows.keys())
            del arrows[free]
    assert not arrows, f"these are in, or behind, a circle of imports: {sorted(arrows)}"


def test_the_training_loop_can_be_read_without_features_and_makers_of_environments():
    read = {_name(path) for path in code_size.closure("impala_mm.learner.learner")}
    assert "impala_mm.learner.train_step" in read
    for rest in ("impala_mm.algorithms.features.", "impala_mm.environments.make", "impala_mm.jobs"):
        assert not [name for name in read if name.startswith(rest)], "an arrow too many"


def test_what_is_sent_to_hosts_needs_nothing_but_the_standard_library():
    for path in sorted((ROOT / "launcher" / "supervise").glob("*.py")):
        for line, name in _imports(path):
            ours = name.startswith("launcher.supervise.")
            assert ours or name.split(".")[0] in sys.stdlib_module_names, f"{path}:{line}: {name}"


def test_supervisors_and_processes_mean_the_same_files_and_ports():
    """The two sides share nothing but these names."""
    assert task.HEARTBEAT == heartbeat.VARIABLE
    assert task.FIRST_PORT == ports.FIRST_PORT
    assert task.SAVE_REQUEST == run_folder.SAVE_REQUEST
    assert host_use.FILE in task.ROW_FILES
    assert task.HOSTS_VARIABLE == heartbeat.HOSTS_VARIABLE
    assert task.CRASH_VARIABLE == heartbeat.CRASH_VARIABLE
    assert task.HOST_NAME_VARIABLE == starter.HOST_NAME_VARIABLE
    assert task.START_VARIABLE == starter.START_VARIABLE
    assert task.ACTORS_VARIABLE == starter.ACTORS_VARIABLE


def test_the_walks_through_the_code_name_files_and_functions_that_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    walk = re.findall(r"^(\d+)\. `(\S+)`, (.*?):", page, re.MULTILINE)
    lengths = (12, 6, 8, 10)  # an unroll, parameters, a checkpoint, a row of the CSV
    assert [int(number) for number, _, _ in walk] == [i for n in lengths for i in range(1, n + 1)]
    picture = (ROOT / "sandbox" / "unroll.svg").read_text()
    for number, file, _ in walk[:12]:
        assert f"{number}  {file}<" in picture
    packages = ("impala_mm", "impala_mm", "impala_mm", "launcher")
    of_step = [package for package, n in zip(packages, lengths, strict=True) for _ in range(n)]
    for package, (_, file, functions) in zip(of_step, walk, strict=True):
        path = ROOT / package / file
        tree = ast.parse(path.read_text())
        classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for function in re.findall(r"`(\S+?)`", functions):
            owner, _, name = function.rpartition(".")
            assert not owner or owner in classes, f"{file} has no {owner}"
            assert name in there | classes.keys(), f"{file} has no {name}"


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "sandbox").rglob("*.md")),
    *sorted((ROOT / "docker").glob("*.md")),
]


def _anchors(page):
    """Return the names by which links reach a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_pages_lead_somewhere(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if path.startswith("http"):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(linked), f"{page.name}: {target}"


def test_every_page_is_linked_from_the_readme_or_a_page_that_it_links():
    linked, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in linked and page.suffix == ".md" and page.exists():
            linked.add(page)
            targets = re.findall(r"\]\(([^)\s#]+)", page.read_text())
            waiting += [(page.parent / target).resolve() for target in targets]
    assert set(PAGES) <= linked, f"linked by no page: {set(PAGES) - linked}"


def test_the_readme_fits_on_two_screens():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 140
    assert len(text.split()) <= 1000


def test_paths_that_the_pages_name_exist():
    """Except in moving.md, which names files of the predecessor, and in CHANGELOG.md."""
    for page in (page for page in PAGES if page.name not in {"moving.md", "CHANGELOG.md"}):
        for path in re.findall(
            r"`((?:impala_mm|launcher|nets|docker|sandbox|tests)/\S+?)`", page.read_text()
        ):
            named = path.split(":")[0].rstrip("/")
            assert (ROOT / named).exists() or any(ROOT.glob(named)), f"{page.name}: {path}"


def test_every_locked_package_has_a_version_and_a_checksum():
    lines = (ROOT / "constraints.lock").read_text().splitlines()
    packages = [i for i, line in enumerate(lines) if line[:1].isalpha()]
    assert len(packages) > 80
    for i in packages:
        assert "==" in lines[i]
        assert "--hash=sha256:" in lines[i + 1]


def test_the_scripts_in_bash_parse():
    for script in (ROOT / ".ci" / "run", ROOT / "launcher" / "emit" / "slurm_job.sh"):
        subprocess.run(["bash", "-n", script], check=True)


def _release(folder, section, version):
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {section}\n\n- x\n\n## 0.1.0\n")
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    makefile = f"--makefile={ROOT / 'Makefile'}"
    # The steps after the check are only printed.
    commands = [["make", makefile, "changelog"], ["make", makefile, "--dry-run", "release"]]
    checked, planned = (
        subprocess.run(each, cwd=folder, capture_output=True, text=True, check=False)
        for each in commands
    )
    assert planned.stdout.startswith("version=")
    assert planned.stdout.index("CHANGELOG.md") < planned.stdout.index("docker/install.py")
    return checked.returncode, checked.stdout


def test_a_version_is_released_only_if_the_changelog_has_a_section_of_its_name(tmp_path):
    assert _release(tmp_path, "0.3.0", "0.3.0") == (0, "")
    for section in ("0.2.0", "Unreleased"):
        assert _release(tmp_path, section, "0.3.0") == (
            2,
            f"[release] the newest section of CHANGELOG.md is '{section}', and pyproject.toml has "
            f"version 0.3.0: write a section '## 0.3.0', or set the version\n",
        )
    run_here = subprocess.run(["make", "changelog"], cwd=ROOT, check=False)
    assert run_here.returncode == 0, "the first change after a release sets the next version"
