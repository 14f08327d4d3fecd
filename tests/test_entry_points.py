"""The two programs as users start them: help, defaults and mistakes."""

import dataclasses
import re
import sys

import pytest
from processes import ROOT, run

from impala_mm.config.flags import AUTO, info
from impala_mm.config.settings import Config
from impala_mm.records import checkpoint
from launcher.plan.settings import LauncherConfig

SETTINGS = Config.of_algorithm(Config.algorithm)
PROGRAMS = {
    "experiment.py": (SETTINGS,),
    "run_experiment_mm_raw.py": (LauncherConfig, SETTINGS),
}

# Flags that programs set for those that they start.
HIDDEN = {"experiment.py": {"origins"}, "run_experiment_mm_raw.py": {"origins"}}
HIDDEN["run_experiment_mm_raw.py"] |= set(LauncherConfig.NOT_TAKEN)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_lists_every_flag_in_its_group_with_its_default(program):
    code, printed = run(sys.executable, program, "--help=all")
    text = " ".join(printed.split())
    assert code == 0
    for config in PROGRAMS[program]:
        for field in dataclasses.fields(config):
            if field.name in HIDDEN[program]:
                assert f" --{field.name} {info(field).text}" not in text
                continue
            about, choices = info(field).text, info(field).choices
            default = str(field.default).lower() if field.type is bool else repr(field.default)
            default = "unset" if field.default in {"", ()} else default
            default = "auto" if info(field).auto and field.default == AUTO else default
            choices = f" Choices: {', '.join(filter(None, choices))}." if choices else ""
            assert f"{info(field).group}:" in text
            assert f"--{field.name} {about}{choices} Default: {default}. " in text


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_begins_with_the_flags_that_most_people_set_a_line_each(program):
    code, printed = run(sys.executable, program, "--help")
    assert code == 0
    assert len(printed.splitlines()) < 100
    assert max(map(len, printed.splitlines())) <= 100
    for name, default in (
        ("level_name", "CartPole-v1"),
        ("gradients_clipping", "-1.0"),
        ("batch_size", "8"),
    ):
        assert re.search(rf"^  --{name} .* \({default}\)$", printed, re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_on_an_algorithm_shows_its_flags_alone_and_its_defaults(program):
    code, printed = run(sys.executable, program, "--help", "--algorithm=ppo")
    names = [line.strip() for line in printed.splitlines() if line.startswith("  --")]
    assert code == 0
    assert {"--clip", "--gae_lambda", "--epochs"} < set(names)
    assert not {"--level_name", "--learning_rate", "--workers_csv_path", "--burn_in"} & set(names)
    assert " --learning_rate=0.0003 " in printed


def test_help_on_words_lists_the_flags_that_contain_each_of_them():
    code, printed = run(sys.executable, "experiment.py", "--help=Gradient-clipping")
    names = [line.strip() for line in printed.splitlines() if line.startswith("  --")]
    assert (code, names) == (0, ["--gradients_clipping", "--gradients_clipping_mode"])
    assert printed.startswith("Optimizer:\n")


def test_help_searches_the_flags_of_all_algorithms_by_the_beginning_of_words():
    code, printed = run(sys.executable, "experiment.py", "--help=hindsight")
    assert code == 0
    assert "--her_ratio" in printed
    assert re.search(r"--algorithm=.*\bsac\b", printed), "it says which algorithm has the flag"
    code, printed = run(sys.executable, "experiment.py", "--help=HER")
    names = [line.strip() for line in printed.splitlines() if line.startswith("  --")]
    assert code == 0
    assert "--her_ratio" in names
    assert "--logdir" not in names, "its text has the word `other`"
    code, printed = run(sys.executable, "experiment.py", "--help=teapot")
    assert (code, printed.count("--help=teapot")) == (2, 1)


def test_messages_name_the_command_by_which_a_program_was_called():
    by_command = "from impala_mm import console; console.run_impala_mm_cluster()"
    code, printed = run(sys.executable, "-c", by_command, "--help")
    assert (code, "usage: impala-mm-cluster [" in printed) == (0, True)
    code, printed = run(sys.executable, "experiment.py", "--hostfile=x")
    assert (code, "--workers_csv_path: of the frontend" in printed) == (2, True)


@pytest.mark.parametrize("job", [[], ["--job_name=learner"]])
def test_a_missing_checkpoint_to_train_from_leaves_no_folder(tmp_path, job):
    code, printed = run(
        *(sys.executable, ROOT / "experiment.py", "--level_name=catch", *job),
        *("--mode=train_from", "--checkpoint=b"),
        cwd=tmp_path,
        XDG_CONFIG_HOME=str(tmp_path),
    )
    assert code == 2, printed
    assert printed.startswith("error: --checkpoint: b does not exist ")
    assert all(name in printed for name in checkpoint.shipped_names())
    assert list(tmp_path.rglob("*")) == []


def test_bad_flags_of_a_policy_gradient_are_refused_before_anything_starts(tmp_path):
    program = (sys.executable, ROOT / "experiment.py", "--algorithm=ppo")
    for flag in ("--num_envs=3", "--minibatches=7"):
        code, printed = run(*program, flag, cwd=tmp_path)
        assert code == 2
        assert flag in printed
        assert len(printed.strip().splitlines()) == 1
        assert not list(tmp_path.iterdir()), "no folder is left behind"


@pytest.mark.parametrize(
    ("program", "argument", "sentence"),
    [
        ("experiment.py", "--batchsize=4", "--batchsize; did you mean --batch_size?"),
        ("experiment.py", "--learning_rate=1e400", "--learning_rate=inf"),
        ("experiment.py", "--mode=rehersal", "did you mean rehearsal?"),
        ("experiment.py", "--flagfile=/not/there", "/not/there"),
        ("run_experiment_mm_raw.py", "--batchsize=4", "--batchsize; did you mean --batch_size?"),
        ("run_experiment_mm_raw.py", "--batch_size=four", "--batch_size=four"),
        ("run_experiment_mm_raw.py", "batch_size=4", "'batch_size=4' is no flag"),
        ("run_experiment_mm_raw.py", "--flagfile=/not/there", "/not/there"),
    ],
)
def test_a_mistyped_flag_ends_at_once_with_one_sentence(program, argument, sentence):
    code, printed = run(sys.executable, program, argument)
    assert code == 2
    assert sentence in printed
    assert len(printed.strip().splitlines()) == 1, "no stack trace for a user's mistake"


def test_the_frontend_forwards_what_was_given_and_only_that(tmp_path):
    flagfile = tmp_path / "flags"
    flagfile.write_text("--learning_rate=0.5\n")
    frontend = sys.executable, "run_experiment_mm_raw.py"
    flags = "--batch_size=4", f"--flagfile={flagfile}", "--notrack", "--full_action_space"
    code, printed = run(*frontend, "--dry_run", *flags)
    assert code == 0, printed
    told = "--track= --batch_size=4 --full_action_space=true --learning_rate=0.5 --logdir="
    processes = [line for line in printed.splitlines() if not line.startswith("#")]
    assert [line.count(f"experiment.py {told}") for line in processes] == [2, 1, 1]
    assert "flagfile" not in printed
    assert "--seed" not in printed


def test_the_frontend_lists_every_mistake_of_a_csv_and_starts_nothing(tmp_path):
    csv = tmp_path / "workers.csv"
    csv.write_text("job,ip,tf_port\nlerner,a,1\nlearner,b,99999\n")
    code, printed = run(sys.executable, "run_experiment_mm_raw.py", f"--workers_csv_path={csv}")
    assert code == 2
    assert "row 2, column job: 'lerner' is not a job (did you mean learner?)" in printed
    assert "row 3, column tf_port: '99999' is not a valid port" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("program", "flags"), [("experiment", "--help=teacher"), ("run_experiment_mm_raw", "--help")]
)
def test_help_and_the_frontend_need_no_tensorflow(program, flags):
    blocked = "sys.modules['tensorflow'] = None  # every import of it fails"
    arguments = [f"{program}.py", flags, "--algorithm=sac"]
    call = f"import {program}; {program}.main({arguments})"
    code, printed = run(sys.executable, "-c", f"import sys; {blocked}\n{call}", cwd=ROOT)
    assert code == 0, printed
    assert "--teacher_cost" in printed


def test_help_ends_quietly_when_its_reader_has_seen_enough():
    line = 'set -o pipefail; "$0" experiment.py --help | true'
    code, printed = run("bash", "-c", line, sys.executable)
    assert (code, printed) == (0, "")
