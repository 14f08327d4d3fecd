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


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_on_words_lists_the_flags_that_contain_each_of_them(program):
    code, printed = run(sys.executable, program, "--help=Gradient-clipping")
    names = [line.strip() for line in printed.splitlines() if line.startswith("  --")]
    assert (code, names) == (0, ["--gradients_clipping", "--gradients_clipping_mode"])
    assert printed.startswith("Optimizer:\n")


def test_help_searches_the_flags_of_all_algorithms_by_the_beginning_of_words():
    code, printed = run(sys.executable, "experiment.py", "--help=hindsight")
    assert code == 0
    assert "--her_ratio" in printed
    assert re.search(r"--algorithm=.*\bsac\b", printed), "it says which algorithm has the flag"
    _, named = run(sys.executable, "experiment.py", "--help=her_ratio")
    assert "--her_ratio" in named
    code, printed = run(sys.executable, "experiment.py", "--help=HER")
    names = [line.strip() for line in printed.splitlines() if line.startswith("  --")]
    assert code == 0
    assert "--her_ratio" in names
    assert "--logdir" not in names, "its text has the word `other`"
    _, printed = run(sys.executable, "experiment.py", "--help=hindsight", "--algorithm=sac")
    assert "--her_ratio" in printed
    assert "with --algorithm=" not in printed


def test_messages_name_the_command_by_which_a_program_was_called():
    by_command = "from impala_mm import console; console.{}()"
    for run_frontend, run_program, name in (
        (["run_experiment_mm_raw.py"], ["experiment.py"], "python run_experiment_mm_raw.py"),
        (
            ["-c", by_command.format("run_impala_mm_cluster")],
            ["-c", by_command.format("run_impala_mm")],
            "impala-mm-cluster",
        ),
    ):
        code, printed = run(sys.executable, *run_frontend, "--help")
        assert (code, f"usage: {name} [" in printed) == (0, True)
        code, printed = run(sys.executable, *run_program, "--hostfile=x")
        assert (code, f"--workers_csv_path of {name}" in printed) == (2, True)


def test_help_on_a_word_of_no_flag_says_so():
    assert run(sys.executable, "experiment.py", "--help=teapot") == (
        2,
        "error: --help=teapot: no flag is about that (`--help=all` lists them)\n",
    )


@pytest.mark.parametrize("job", [[], ["--job_name=learner"]])
def test_a_missing_checkpoint_to_train_from_leaves_no_folder(tmp_path, job):
    (tmp_path / "a").mkdir()
    named = f"(policies of this package: {', '.join(checkpoint.shipped_names())})"
    for name, why in (("b", f"does not exist {named}"), ("a", "is not the folder of a run")):
        code, printed = run(
            *(sys.executable, ROOT / "experiment.py", "--level_name=catch", *job),
            *("--mode=train_from", f"--checkpoint={name}"),
            cwd=tmp_path,
            XDG_CONFIG_HOME=str(tmp_path / "a"),
        )
        assert (code, printed) == (
            2,
            f"error: --checkpoint: {name} {why}; give the folder of a run, or one of the folders "
            f"in its checkpoints/\n",
        )
        assert [path.name for path in tmp_path.rglob("*")] == ["a"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--num_envs=3", "which actors with --num_envs=3 cannot fill exactly: use --num_envs=1, 2"),
        ("--minibatches=7", "--minibatches=7 does not divide --batch_size x --unroll_length=2048"),
        ("--minibatch_of=unrolls --minibatches=32", "=32 is more than --batch_size=16"),
        ("--clip=-0.1", "--clip=-0.1: it must be at least 0"),
        ("--target_kl_pi_mu=-1", "--target_kl_pi_mu=-1.0: it must be at least 0"),
    ],
)
def test_bad_flags_of_a_policy_gradient_are_refused_before_anything_starts(
    tmp_path, flags, sentence
):
    program = (sys.executable, ROOT / "experiment.py", "--algorithm=ppo", *flags.split())
    code, printed = run(*program, cwd=tmp_path)
    assert code == 2
    assert sentence in printed
    assert len(printed.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir()), "no folder is left behind"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--batchsize=4", "there is no flag --batchsize; did you mean --batch_size?"),
        ("--batch_size=four", "needs a whole number"),
        ("--batch_size=0", "--batch_size=0: it must be at least 1"),
        ("--learning_rate=nan", "--learning_rate=nan: it must be at least 0"),
        ("--learning_rate=1e400", "--learning_rate=inf: it must be a finite number"),
        ("--mode=rehersal", "test, record, export or rehearsal (did you mean rehearsal?)"),
        ("batch_size=4", "'batch_size=4' is no flag: write --name=value"),
        ("--flagfile=/not/there", "/not/there"),
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


@pytest.mark.parametrize("program", ["experiment", "run_experiment_mm_raw"])
@pytest.mark.parametrize("flags", ["--help", "--help=teacher"])
def test_help_and_the_frontend_need_no_tensorflow(program, flags):
    blocked = "sys.modules['tensorflow'] = None  # every import of it fails"
    arguments = [f"{program}.py", flags, "--algorithm=sac"]
    call = f"import {program}; {program}.main({arguments})"
    code, printed = run(sys.executable, "-c", f"import sys; {blocked}\n{call}", cwd=ROOT)
    assert code == 0, printed
    assert "--teacher_cost" in printed


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_ends_quietly_when_its_reader_has_seen_enough(program):
    line = 'set -o pipefail; "$0" "$1" --help | true'
    code, printed = run("bash", "-c", line, sys.executable, ROOT / program)
    assert (code, printed) == (0, "")
