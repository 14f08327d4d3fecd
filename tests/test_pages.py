"""The pages: their blocks of code, and those for newcomers, typed in a new home with the wheel."""

import ast
import csv
import re
import subprocess
import sys
import textwrap
import tomllib

import pytest
from far_cluster import FarCluster
from pages import Reader, blocks
from processes import ROOT, needs_horovod, run
from rows import read_rows

from impala_mm import console
from impala_mm.config.settings import Config
from launcher.plan.workers_csv import COLUMNS

sys.path.append(str(ROOT / "sandbox" / "site"))

import code_pages
import formulas

ALGORITHM, ENVIRONMENT = "sandbox/own_algorithm.md", "sandbox/own_environment.md"
PAGES = sorted(
    path.relative_to(ROOT)
    for pattern in ("*.md", "sandbox/**/*.md", "docker/*.md")
    for path in ROOT.glob(pattern)
)
LANGUAGES = ("", "csv", "math", "python", "sh", "toml")
# A command of ours, to the end of its line or code; and the names of flags in it.
_COMMAND = re.compile(r"\b(?:experiment|run_experiment_mm_raw)\.py((?: [^\n`#]*)?)")
_OF_OTHER_PROGRAMS = set(
    "allow exclusive flag gpus mca mem model_base_path no num_workers oversubscribe requeue "
    "rollout shm signal summaries_use_frameskip time".split()
)
_FLAG = re.compile(r"(?<=\s)--(\w+)")
# They name flags of other programs, and of earlier versions.
_NAMING_OTHERS = (
    "moving.md",
    "from_seed_rl.md",
    "from_reincarnating_rl.md",
    "from_elite_buffer_vtrace.md",
    "CHANGELOG.md",
)


def _code(name):
    return (ROOT / "sandbox" / name).read_text()


def _lines(text):
    return [line for line in text.splitlines() if line.strip()]


def test_an_installed_package_has_each_test_to_which_a_page_leads():
    named = re.findall(r'"(tests/[^"]+)"', (ROOT / "setup.py").read_text())
    for page in PAGES:
        for link in re.findall(r"\]\((?:\.\./)*(tests/[^)#]+)", (ROOT / page).read_text()):
            assert link.startswith(tuple(named)), (
                f"{page}: setup.py and MANIFEST.in leave {link} out"
            )


def _shown(page, *names):
    """Return whether each block of Python in a page is a part of these files."""
    code = _lines("\n".join(map(_code, names)))
    there = "\n".join(map(str.strip, code))
    return ["\n".join(map(str.strip, _lines(text))) in there for _, text in blocks(page, "python")]


def test_pages_show_parts_of_their_examples():
    assert all(_shown(ALGORITHM, "own_algorithm_settings.py", "own_algorithm.py", "own_feature.py"))
    environments = "own_environment.py", "own_spaces.py", "own_suite.py", "own_vector.py"
    assert all(_shown(ENVIRONMENT, *environments))
    for page, *names in (
        ("networks.md", "own_network.py", "own_names.py"),
        ("teachers.md", "own_teacher.py"),
        ("export_and_video.md", "own_export.py"),
        ("replay.md", "own_replay.py"),
    ):
        for name in names:
            assert any(_shown(f"sandbox/{page}", name)), name


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_blocks_of_a_page_have_a_known_language_and_its_syntax(page):
    fences = re.findall(r"^ *```(\w*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert set(fences) <= set(LANGUAGES)
    assert len(fences) == 2 * sum(len(blocks(page, language)) for language in LANGUAGES)
    for _, text in blocks(page, "python"):
        ast.parse(textwrap.dedent(text))
    for _, text in blocks(page, "sh"):
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        for path in re.findall(r"(?<![\w/.-])(?:sandbox|tests|docker)/[\w/.]+\w", text):
            assert (ROOT / path).exists(), path
    for _, text in blocks(page, "toml"):
        tomllib.loads(text)
    for _, text in blocks(page, "csv"):
        header, *rows = csv.reader(text.splitlines())
        assert set(header) <= set(COLUMNS)
        assert {len(row) for row in rows} == {len(header)}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_the_formulas_of_a_page_can_be_drawn(page):
    for _, text in blocks(page, "math"):
        assert formulas.render(text).count("<path ") == len(text.splitlines())


def test_flags_in_pages_exist():
    scripts = "".join(path.read_text() for path in (ROOT / "sandbox").rglob("*.py"))
    flags = code_pages.flag_pages().keys() | Config.ALIASES.keys() | {"help", "flagfile"}
    defined = re.findall(r'"--(\w+)|^    (\w+): .* = flag\(', scripts, re.MULTILINE)
    options = flags | {name for names in defined for name in names} | _OF_OTHER_PROGRAMS
    found = set()
    for page in PAGES:
        if page.name not in _NAMING_OTHERS:
            text = re.sub(r"\\\n\s*", "", (ROOT / page).read_text())
            named = {name for command in _COMMAND.findall(text) for name in _FLAG.findall(command)}
            inline = set(re.findall(r"`--(\w+)", text))
            assert named <= flags, f"{page}: {named - flags}"
            assert inline <= options, f"{page}: {inline - options}"
            found |= named | inline
    assert len(found) > 200


def test_commands_of_the_package_in_pages_exist():
    known = set(re.findall(r"^impala-mm ([a-z-]+)", console.__doc__, re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"\bimpala-mm ([a-z][a-z-]*)", (ROOT / page).read_text()))
        assert named <= known, f"{page}: {named - known}"


def test_every_page_is_in_the_sites_navigation():
    config = (ROOT / "sandbox" / "site" / "mkdocs.yml").read_text()
    named = re.findall(r"^ +- .*?: (\S+\.md)$", config, re.MULTILINE)
    assert len(named) == len(set(named))
    assert set(map(str, PAGES)) | set(code_pages.pages()) == {*named} - {"sandbox/start.ipynb.md"}


def test_the_index_of_the_sandbox_names_all_of_its_files():
    text = (ROOT / "sandbox" / "README.md").read_text()
    named = {*re.findall(r"\]\(([\w.]+)\)", text), *re.findall(r"`([\w.]+)/?`", text)}
    there = {
        path.name
        for path in (ROOT / "sandbox").iterdir()
        if path.suffix != ".svg" and path.name not in ("README.md", "__pycache__")
    }
    assert there <= named, there - named
    assert len(there) > 60


@pytest.fixture
def type_page(tmp_path, package):
    """Return a function that makes a user who types a page's commands."""
    made = []

    def read(page):
        made.append(Reader(page, tmp_path / "home", package.commands.parent))
        return made[-1]

    yield read
    for reader in made:
        reader.end()


def test_a_clone_has_the_commands_too():
    (first, *_) = blocks(ENVIRONMENT, "sh")
    assert "cp $(impala-mm docs)/sandbox/own_environment.py" in first[1]
    code, printed = run("impala-mm", "docs", PYTHONPATH=str(ROOT))
    assert (code, printed) == (0, f"{ROOT}\n")


@pytest.mark.slow
def test_the_readmes_first_run_solves_cartpole(package, tmp_path):
    script = "\n".join([f". {package.commands}/activate", *package.others])
    code, printed = run("bash", "-exc", script, cwd=tmp_path, limit=400, PYTHONPATH="")
    assert code == 0, printed
    assert "the mean return reached 475" in printed
    assert {"README.md", "sandbox", "workers.csv.example"} <= set(printed.split())


@pytest.mark.slow
def test_all_python_of_the_page_on_python_runs_as_one_script(type_page):
    user = type_page("sandbox/from_python.md")
    printed = user.run_python()
    mean, *_ = re.findall(r"^\d+\.\d+$", printed, re.MULTILINE)
    assert float(mean) > 100
    assert printed.splitlines()[-1] == "[0 1]", "the signs of -0.5 and 0.5"
    assert (user.home / "exported" / "saved_model.pb").exists()


@pytest.mark.slow
def test_an_own_algorithm_is_trained_to_a_curve_tested_exported_and_resumed(type_page):
    user = type_page(ALGORITHM)
    printed = user.type("Run it")
    assert "valid: CartPole-v1, my_ppo, MLPAgent" in printed
    assert "CartPole-v1: mean return of the last 100 games" in printed
    assert "resumed at 3" in printed
    last = user.rows("ppo")[-1]
    assert last["frames"] >= 40_000
    assert last["episode_return"] > 60
    assert last["policy_lag"] == 0
    assert {"loss/value", "kl", "minibatches", "learning_rate"} <= last.keys()
    assert (user.home / "research/runs/ppo/export/saved_model.pb").exists()


@pytest.mark.slow
def test_an_own_environment_is_checked_solved_and_tested(type_page):
    user = type_page(ENVIRONMENT)
    printed = user.type("Train on it")
    assert "valid: corridor:Corridor-v0, impala" in printed
    assert "the mean return reached 0.85" in printed
    assert user.rows("corridor")[-1]["episode_return"] >= 0.85


@pytest.mark.slow
def test_an_own_environment_with_every_space_takes_arguments_and_wrappers(type_page):
    user = type_page(ENVIRONMENT)
    printed = user.type("Spaces", "Functions, arguments, wrappers")
    assert re.search(r"mean return \d\.\d\d; random: 4\.", printed)
    returns = [row["episode_return"] for row in user.rows("panel") if "episode_return" in row]
    assert returns[-1] > returns[0] + 1
    last = user.rows("wrapped")[-1]
    assert last["episode_length"] == 5
    assert 0 < last["episode_return"] < 0.5


@needs_horovod
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "headings", "runs"),
    [
        (ALGORITHM, ("On two learners", "From a CSV, and on other hosts"), ("two", "csv")),
        (ENVIRONMENT, ("Two learners, a CSV, other hosts",), ("panel2", "panel3")),
    ],
)
def test_two_learners_and_the_frontend(type_page, page, headings, runs):
    user = type_page(page)
    user.type(*headings)
    last = user.rows(runs[0])[-1]
    assert min(last["steps/learner0"], last["steps/learner1"]) > 0
    assert user.rows(runs[1])[-1]["frames"] >= 5_000


@needs_horovod
@pytest.mark.slow
def test_two_learners_on_two_hosts_train_an_algorithm_that_deploy_takes_there(lan):
    (command,) = [text for _, text in blocks(ALGORITHM, "sh") if "impala-mm-cluster" in text]
    assert "--algorithm=my_ppo" in command, "the page's command is this one, without --deploy"
    far = FarCluster(lan, python=sys.executable)
    folder = lan.laptop.path("/root/research")
    folder.mkdir()
    (folder / "my_ppo.py").write_text(_code("own_algorithm.py"))
    (folder / "my_ppo_settings.py").write_text(_code("own_algorithm_settings.py"))
    learners, actors = ["learner1", "learner2"], ["actor1", "actor2", "actor3"]
    flags = ("--algorithm=my_ppo", "--check_sync_every=5", "--total_environment_frames=20000")
    ran = lan.laptop.run(
        *("sh", "-c", 'cd /root/research && exec "$@"', "sh"),
        *far.frontend(far.of(learners, actors), "--deploy", *flags, "--logdir=/root/run"),
        check=False,
        timeout=250,
    )
    printed = ran.stdout + ran.stderr
    assert ran.returncode == 0, printed
    assert "copied into the project's folder: my_ppo.py, my_ppo_settings.py" in printed
    for name in (*learners, *actors):
        for copied in ("my_ppo.py", "my_ppo_settings.py"):
            assert (lan.hosts[name].home / "impala_mm" / copied).exists()
    assert far.left() == {}
    assert "weights on 2 learners" in printed
    assert "reached 20,000 frames" in printed
    last = read_rows(lan.laptop.path("/root/run"))[-1]
    assert min(last["steps/learner0"], last["steps/learner1"]) > 0
    assert last["policy_lag"] == 0
    assert last["sync_checks"] > 0
    assert last["sync_repairs"] == 0
