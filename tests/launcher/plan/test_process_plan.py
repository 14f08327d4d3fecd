"""From rows to commands: which process is told what, and that nothing of it is lost on the way."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.plan import host_environment, process_plan, project
from launcher.plan.settings import LauncherConfig
from launcher.plan.workers_csv import Worker

PYTHON, EXPERIMENT = sys.executable, str(project.ROOT / "experiment.py")
FOLDER = "/state/impala"


def _learner(port=8001, **more):
    return Worker(2, "learner", "localhost", tf_port=port, **more)


def _actor(**more):
    return Worker(3, "actor", "localhost", **more)


def _made(rows, config, flags):
    """All of this machine."""
    told = {"logdir": "/run"} | flags
    return process_plan.make_processes(
        rows, config, told, lambda row: host_environment.local_installation(row, FOLDER)
    )


def _told(process):
    """The flags of a process's command, by name."""
    at = process.command.index(EXPERIMENT)
    return dict(part.removeprefix("--").split("=", 1) for part in process.command[at + 1 :])


def test_one_learner_needs_no_mpirun_and_every_process_has_its_role():
    evaluator = Worker(4, "evaluator", "localhost")
    rows = [evaluator, _actor(count=2), _learner(), _actor(num_envs=4, cuda_visible_devices="1")]
    processes = _made(rows, LauncherConfig(), {"batch_size": "4", "logdir": "/a b"})
    assert [p.name for p in processes] == ["learners", "actor-0", "actor-1", "actor-2", "evaluator"]
    common = {
        "batch_size": "4",
        "logdir": "/a b",
        "learner_hosts": "localhost:8001",
        "token_file": f"{FOLDER}/token",
    }
    assert [_told(p) for p in processes] == [
        common | {"job_name": "learner"},
        common | {"job_name": "actor", "task": "0"},
        common | {"job_name": "actor", "task": "1"},
        common | {"job_name": "actor", "task": "2", "num_envs": "4"},
        common | {"job_name": "evaluator"},
    ]
    assert all(p.command[:2] == [PYTHON, EXPERIMENT] for p in processes)
    assert [p.environment for p in processes[2:4]] == [{}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert processes[0].environment == {"IMPALA_MM_ACTORS": "3"}
    assert processes[0].workdir == str(Path.cwd())


def test_several_learners_are_one_mpirun_with_a_segment_each():
    rows = [_learner(8001, cuda_visible_devices="0"), _learner(8002, cuda_visible_devices="1,2")]
    config = LauncherConfig(env=("A=1", "NCCL_DEBUG=a b"), mpirun_args="--tag-output --x 'y z'")
    learners = _made(rows, config, {"seed": "3"})[0]
    mpirun, *rest = learners.command
    assert Path(mpirun).name == "mpirun"
    flags = [
        *("--logdir=/run", "--seed=3", "--learner_hosts=localhost:8001,localhost:8002"),
        *("--job_name=learner", f"--token_file={FOLDER}/token"),
    ]
    told = ["-x", "A", "-x", "NCCL_DEBUG", "-x", "IMPALA_MM_ACTORS", "-x"]
    assert rest == [
        *("--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"),
        *("--tag-output", "--x", "y z"),
        *("-np", "1", *told, "CUDA_VISIBLE_DEVICES=0", PYTHON, EXPERIMENT, *flags),
        *(":", "-np", "1", *told, "CUDA_VISIBLE_DEVICES=1,2", PYTHON, EXPERIMENT, *flags),
    ]
    assert learners.environment["A"] == "1"
    assert learners.environment["NCCL_DEBUG"] == "a b"


@pytest.mark.parametrize(
    ("addresses", "reported", "known"),
    [
        ("a:0,a:8001,b:0", "a:8002,a:8001,b:8001", "a:8002,a:8001,b:8001"),
        ("b:0", "a:8001,b:8003", "b:8003"),  # the learner on another host is lost
        ("a:0,c:0", "a:8001,b:8001", "a:8001,c:0"),
        ("a:0", "a:0", "a:0"),
    ],
)
def test_a_learner_that_is_restarted_keeps_the_port_that_it_chose(addresses, reported, known):
    assert process_plan.known_addresses(addresses, reported) == known
    assert process_plan.chooses_port(known) == (":0" in known)


def test_an_actor_may_be_given_to_a_learner():
    rows = [_learner(8001), _learner(8002), _actor(learner=1), _actor()]
    _, given_away, taken_in_turn = _made(rows, LauncherConfig(), {})
    assert _told(given_away)["learner"] == "1"
    assert "learner" not in _told(taken_in_turn)


def test_a_row_has_its_own_python_folder_and_set_up():
    row = _actor(python="/opt/my python", workdir="/tmp/x", setup="module load a; conda activate b")
    actor = _made([_learner(), row], LauncherConfig(setup="true"), {})[1]
    assert actor.workdir == "/tmp/x"
    assert actor.command[:2] == ["bash", "-c"]
    assert actor.command[2].startswith("module load a; conda activate b\n")
    assert actor.command[4] == "/opt/my python"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=6))
def test_after_its_set_up_a_process_is_told_every_argument_verbatim(arguments):
    """In the very process that the shell was: signals are its own."""
    program = "import json, os, sys; print(json.dumps([os.environ['MADE'], sys.argv[1:]]))"
    command = process_plan.with_setup(
        _actor(setup="export MADE='by set up'"),
        LauncherConfig(),
        [PYTHON, "-Sc", program, *arguments],
    )
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == ["by set up", arguments]


@pytest.mark.parametrize(
    ("setup", "code", "printed"),
    [
        ("(exit 7)", 7, ""),
        ("exit 5", 5, ""),
        ("true # modules", 0, "started\n"),
        ("true &", 0, "started\n"),
    ],
)
def test_a_set_up_that_fails_starts_nothing_and_any_other_does(setup, code, printed):
    command = process_plan.with_setup(_actor(setup=setup), LauncherConfig(), ["echo", "started"])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (code, printed)


def test_a_line_can_be_pasted_into_a_shell_and_holds_no_secret():
    config = LauncherConfig(env=("WANDB_API_KEY=hunter2", "A=b c"))
    line = _made([_learner()], config, {"logdir": "/a'b; $(c)"})[0].shell_line()
    assert "hunter2" not in line
    words = shlex.split(line)
    assert words[:2] == ["WANDB_API_KEY=***", "A=b c"]
    assert "--logdir=/a'b; $(c)" in words


def test_a_variable_without_a_value_has_that_of_the_shell_and_no_line_shows_it(monkeypatch):
    monkeypatch.setenv("WORD", "between us")
    config = LauncherConfig(env=("WORD", "A=1"))
    learners, actor = _made([_learner(8001), _learner(8002), _actor()], config, {})
    for process in (learners, actor):
        assert process.environment["WORD"] == "between us"
        assert "between us" not in " ".join(process.command)
        line = process.shell_line(process_plan.names_from_shell(config))
        assert line.startswith('WORD="$WORD" A=1 ')
        assert "between us" not in line


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (LauncherConfig(env=("a secret",)), "--env=...: write NAME=value"),
        (LauncherConfig(env=("UNSET",)), "--env=UNSET: this shell has no such variable"),
        (LauncherConfig(env=("A B=1",)), "--env=A B: write NAME=value"),
        (LauncherConfig(mpirun_args="'x"), "--mpirun_args='x: No closing quotation"),
    ],
)
def test_what_cannot_be_told_is_refused(config, said):
    with pytest.raises(process_plan.PlanError) as caught:
        _made([_learner(8001), _learner(8002)], config, {})
    assert str(caught.value).startswith(said)


def test_learners_on_several_hosts_are_one_mpirun_and_a_process_on_each_other_host():
    hosts = ["a", "b", "a", "c", "b"]
    rows = [Worker(i, "learner", host) for i, host in enumerate(hosts)] + [_actor()]

    def installation_of(row):
        place = (row.ip, row.ip, f"/{row.ip}", f"/{row.ip}/w", "python", "/mpi/bin/mpirun")
        return host_environment.Installation(*place, f"/{row.ip}/state", False)

    config = LauncherConfig(env=("WORD=1",), setup="module load cuda")
    flags, ports = {"logdir": "/run"}, [7001, 7005]
    made = process_plan.make_processes(rows, config, flags, installation_of, ports)
    assert [process.name for process in made] == ["learners", "learners-1", "learners-2", "actor-0"]
    learners, *others, _ = made
    assert json.loads(learners.environment["IMPALA_MM_MPI_PORTS"]) == {
        "b": ["a", 7001],
        "c": ["a", 7005],
    }
    command = learners.command
    assert [command[i + 1] for i, word in enumerate(command) if word == "--host"] == hosts
    for name, process, port in zip("bc", others, ports, strict=True):
        assert process.installation.host_id == name
        host = ["launcher.supervise", "mpi_host", "a", "/mpi", str(port)]
        assert process.command == host
        assert process.environment == {"IMPALA_MM_MPI_CERTIFICATES": f"/{name}/state/token"}
        # One that is restarted alone, on a host that was rebooted, is the same.
        common = process_plan.join_common_flags(rows, flags, installation_of)
        again = process_plan.make_process(
            process.name, process.worker, config, common, installation_of, port
        )
        assert (again.command, again.environment) == (process.command, process.environment)
