"""Tests that the pages on moving from other trainers agree with the program."""

import dataclasses
import re
import shlex
import subprocess

import pytest
from cluster import FRONTEND
from pages import blocks
from processes import ROOT, run

from impala_mm.algorithms.impala.settings import ImpalaSettings
from impala_mm.config import command_line, peer_names
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import COLUMNS

PAGE = (ROOT / "sandbox" / "moving.md").read_text()
OURS = {
    f.name: f for config in (LauncherConfig, ImpalaSettings) for f in dataclasses.fields(config)
}
ALL = {f.name for f in dataclasses.fields(LauncherConfig)} | {
    f.name for name in BUILT_IN for f in dataclasses.fields(Config.of_algorithm(name))
}
# All flags that the predecessor's two programs defined with their defaults, and one that its
# README names.
THEIRS = {
    "workers_csv_path": "sandbox/local_workers_example.csv", "tmux_sess": "impala",
    "logdir": "/tmp/agent/", "mode": "train", "test_num_episodes": "10",
    "learner_host": "localhost:8001", "actor_hosts": "localhost:9001,localhosts:9002",
    "task": "-1", "job_name": "learner", "total_environment_frames": "1e9", "batch_size": "2",
    "unroll_length": "100", "seed": "1", "agent_name": "SimpleConvNetAgent",
    "queue_capacity": "1", "entropy_cost": "0.00025", "baseline_cost": "0.5",
    "discounting": "0.99", "reward_clipping": "abs_one", "gradients_clipping": "-1.0",
    "level_name": "BreakoutNoFrameskip-v4", "width": "84", "height": "84",
    "learning_rate": "0.00048", "decay": "0.99", "momentum": "0.0", "epsilon": "0.1",
    "num_action_repeats": "",
}  # fmt: skip
THEIR_COLUMNS = "job ip tf_port cuda_visible_devices ssh_port ssh_username ssh_password".split()
# The command of the predecessor's README.
THEIR_README = """--workers_csv_path=sandbox/local_workers_example.csv
    --level_name=BreakoutNoFrameskip-v4 --agent_name=SimpleConvNetAgent --num_action_repeats=1
    --batch_size=32 --unroll_length=20 --entropy_cost=0.01 --learning_rate=0.0006
    --total_environment_frames=200000000 --reward_clipping=abs_one --gradients_clipping=40.0"""
# The pages on other trainers, and how many commands each has.
PAGES = {"from_seed_rl.md": 8, "from_reincarnating_rl.md": 5, "from_elite_buffer_vtrace.md": 4}
UNSET = ("", 0, -1, "auto")  # defaults that stand for another value, which the page describes


def _section(heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)[1]


def _blocks(kind, page="moving.md"):
    return [text for _, text in blocks(f"sandbox/{page}", kind)]


def _commands(program, page="moving.md"):
    """Return the arguments of each command of this program; an mpirun is split into its ranks."""
    lines = "\n".join(_blocks("sh", page)).replace("\\\n", " ").splitlines()
    ranks = [rank for line in lines for rank in line.split(" : ") if f"python {program} " in rank]
    return [shlex.split(rank.partition(program)[2], comments=True) for rank in ranks]


def _accepts(argument):
    try:
        command_line.parse(["program", argument], "", LauncherConfig, Config)
    except SystemExit:
        return False
    return True


def _dry_run(*arguments, folder=ROOT):
    return run(*FRONTEND, *arguments, "--dry_run", cwd=folder)


def test_the_table_has_each_flag_of_the_predecessor_with_its_default_and_ours():
    rows = {row.there: row for row in peer_names.table("impala_horovod_gym")}
    assert {name: row.default for name, row in rows.items()} == THEIRS
    for name, row in rows.items():
        if row.difference.startswith("now "):
            value = re.match(r"now (\S+)(?=;|$)", row.difference)
            due = [OURS[name].type(value[1])] if value else UNSET
            assert OURS[name].default in due, name
        elif name in OURS and THEIRS[name]:
            assert OURS[name].type(THEIRS[name]) == OURS[name].default, name
    refused = [("job_name", "ps"), ("task", "-1")]
    assert all(f"`--{name}={value}`" in _section("Flags") for name, value in refused)
    for name, value in [*THEIRS.items(), *refused]:
        if value:
            assert _accepts(f"--{name}={value}") == ((name, value) not in refused), name


@pytest.mark.parametrize("page", ["moving.md", *PAGES])
def test_flags_that_are_named_anywhere_on_a_page_exist(page):
    text = (ROOT / "sandbox" / page).read_text()
    for theirs in _blocks("", page):
        text = text.replace(theirs, "")
    named = set(re.findall(r"(?<![\w-])--(\w[\w-]+)", text))
    assert len(named) > 10
    mpirun = {"bind-to", "allow-run-as-root"}
    assert named - mpirun <= ALL | Config.OLD_NAMES.keys()


def test_each_column_exists():
    rows = re.findall(r"^- `(\w+)`:", _section("The CSV"), re.MULTILINE)
    assert rows == THEIR_COLUMNS
    new = re.search(r"New: (.*)$", PAGE, re.MULTILINE)[1]
    assert {*rows, *re.findall(r"`(\w+)`", new)} == set(COLUMNS)


def test_commands_are_accepted(capsys):
    commands = _commands("run_experiment_mm_raw.py")
    assert len(commands) == 2
    assert commands[0] == THEIR_README.split()
    for command in commands:
        code, printed = _dry_run(*command)
        assert code == 0, printed
        if command is commands[0]:
            page = [" ".join(text.split()) for text in _blocks("")]
            assert " ".join(printed.partition("# learners")[0].split()) in page
        told = [line for line in printed.splitlines() if "experiment.py" in line]
        assert len(told) == 4, "the learners' mpirun and three actors"
        for argument in command:
            name, _, value = argument.partition("=")
            if name.removeprefix("--") in {f.name for f in dataclasses.fields(Config)}:
                assert all(f"{name}={value or 'true'}" in line for line in told), argument
    single = _commands("experiment.py")
    assert len(single) == 4
    for command in single:
        command_line.parse(["experiment.py", *command], "", Config)
    assert "--learner_host is an old name" in capsys.readouterr().err


def test_a_csv_of_the_converter_is_read_as_it_is_and_its_passwords_are_never_printed(tmp_path):
    csv = tmp_path / "workers.csv"
    csv.write_text(_blocks("csv")[0])
    csv.chmod(0o600)
    code, printed = _dry_run("--workers_csv_path=workers.csv", folder=tmp_path)
    assert code == 0, printed
    assert "CUDA_VISIBLE_DEVICES=1" in printed
    assert "--learner_hosts=192.0.2.1:8001,192.0.2.1:8002" in printed
    assert "hush" not in printed


def test_what_stands_in_for_the_converter_makes_a_csv(tmp_path):
    (tmp_path / "hosts.csv").write_text("ip,port\n192.0.2.11,2201\n192.0.2.12,22\n")
    (script,) = [block for block in _blocks("sh") if block.startswith("awk")]
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True)
    code, printed = _dry_run("--workers_csv_path=workers.csv", folder=tmp_path)
    assert code == 0, printed
    assert "# actor-1 on 192.0.2.12, " in printed
    assert printed.count("--job_name=learner") == 2


@pytest.mark.parametrize("flag", ["--learner_host=localhost:8001", "--task=0"])
def test_what_the_frontend_refuses(flag):
    code, printed = _dry_run("--workers_csv_path=sandbox/local_workers_example.csv", flag)
    assert code == 2
    assert "error: --" in printed.splitlines()[-1]


@pytest.mark.parametrize(("page", "count"), PAGES.items())
def test_commands_of_the_other_pages_are_accepted(page, count, tmp_path, monkeypatch):
    single = _commands("experiment.py", page)
    clusters = _commands("run_experiment_mm_raw.py", page)
    assert len(single + clusters) == count
    monkeypatch.chdir(tmp_path)
    for text in _blocks("toml", page):
        (tmp_path / "theirs.toml").write_text(text)
    for command in single:
        command_line.parse(["experiment.py", *command], "", Config)
    for command in clusters:
        command_line.parse(["run_experiment_mm_raw.py", *command], "", LauncherConfig, Config)


@pytest.mark.parametrize("page", PAGES)
def test_answers_are_as_the_page_has_them(page, capsys):
    (told,) = (text for text in _blocks("", page) if text.startswith("$ "))
    for each in told.split("$ ")[1:]:
        command, _, said = each.partition("error: ")
        with pytest.raises(SystemExit):
            command_line.parse(shlex.split(command)[1:], "", Config)
        assert " ".join(said.split()) == " ".join(capsys.readouterr().err.split()[1:])
