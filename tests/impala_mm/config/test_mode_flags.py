"""Flags that only some modes read are refused in the others."""

import dataclasses
import sys

import pytest
from processes import run

from impala_mm.config import command_line, mode_flags
from impala_mm.config.settings import Config


def _refuse(*arguments, also=()):
    (config,), _ = command_line.parse(["experiment.py", *arguments], "", Config)
    mode_flags.refuse_idle(config, also)


@pytest.mark.parametrize("name", sorted(mode_flags._READ_WITH))
def test_each_is_read_where_the_refusal_says_and_nowhere_else(name, capsys):
    (f,) = [f for f in dataclasses.fields(Config) if f.name == name]
    flag = f"--{name}={ {bool: 'true', str: 'x'}.get(f.type, 1) }"
    with pytest.raises(SystemExit) as ended:
        _refuse(flag)
    assert ended.value.code == 2
    places = " or ".join(mode_flags._READ_WITH[name])
    said = f"error: --{name} has no effect with --mode=train: give {places}, or leave it out"
    assert capsys.readouterr().err.startswith(said)
    for place in mode_flags._READ_WITH[name]:
        _refuse(flag, place)
        _refuse(flag, also=[place])


def test_an_evaluator_names_itself(capsys):
    with pytest.raises(SystemExit):
        _refuse("--job_name=evaluator", "--render")
    assert "--render has no effect with --job_name=evaluator: give --mode=test" in (
        capsys.readouterr().err
    )


def test_a_file_of_settings_may_have_flags_of_another_mode(tmp_path):
    (tmp_path / "my.toml").write_text("episodes = 5")
    _refuse(f"--config={tmp_path / 'my.toml'}")


@pytest.mark.parametrize("job", ["learner", "actor"])
def test_processes_of_a_cluster_have_the_flags_of_its_evaluator(job):
    _refuse(f"--job_name={job}", "--test_num_episodes=3")


@pytest.mark.parametrize(
    ("environment", "code"), [({}, 2), ({"IMPALA_MM_START": "check"}, 0)], ids=["user", "frontend"]
)
def test_the_check_of_a_frontend_accepts_the_flags_of_its_evaluators(environment, code):
    found, printed = run(
        *(sys.executable, "experiment.py", "--validate", "--level_name=catch"),
        *("--test_num_episodes=3", "--deterministic"),
        **environment,
    )
    assert found == code, printed
