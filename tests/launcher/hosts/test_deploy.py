"""--deploy to real hosts: what is copied, what is left alone, and what set-up reports."""

import json
import os
import random
import re
import shutil
import signal
import sys
import time

import hosts
import pytest
from deploying import Project, under
from processes import ROOT, run
from supervising import until

from launcher.hosts.deploy import failure_reason, find_destinations
from launcher.plan.workers_csv import Worker

LEARNER = "learner,10.77.1.11,,,,,"
ACTOR1, ACTOR2, ACTOR3 = (
    "actor,10.77.1.21,,,,,",
    'actor,10.77.1.22,2222,trainer,"don\'t ""tell"" anybody",,',
    "actor,actor3,,,,,",
)
ON_ACTOR1 = "actor,10.77.1.21,,,,{},"


@pytest.fixture
def project(lan):
    return Project(lan)


def test_a_host_gets_the_project_once_and_later_only_what_changed(project, lan):
    project.csv(LEARNER, ACTOR1, ACTOR2, ACTOR3)
    project.write("old/module.py", "")
    failed, printed = project.deploy()
    assert failed == {}, printed
    assert "code and environment: 4 of 4 hosts ready" in printed
    folders = [
        host.home / "impala_mm" for host in (lan.learner1, lan.actor1, lan.actor2, lan.actor3)
    ]
    ours = {
        name
        for name in under(project.folder)
        if not name.startswith((".git/", ".venv/", "runs/")) and name != "workers.csv"
    }
    assert {"experiment.py", "bin/program", "launcher/hosts/deploy.py", ".gitignore"} < ours
    told = [(folder / ".venv" / "told").read_text() for folder in folders]
    assert told == ["--role=learner --device=cpu", *["--role=actor --device=cpu"] * 3]
    for folder in folders:
        there = under(folder)
        there.pop(".venv/told")
        assert there == {name: (project.folder / name).read_text() for name in ours}
        assert os.access(folder / "bin" / "program", os.X_OK)
        assert not os.access(folder / "experiment.py", os.X_OK)
    assert folders[2].stat().st_uid == 7000, "they are the user's whose host it is"

    own = {"launcher/mine.py": "the user's own\n", "runs/checkpoint": "theirs\n"}
    (folders[0] / "runs").mkdir()
    for name, content in own.items():
        (folders[0] / name).write_text(content)
    compiled = folders[0] / "old" / "__pycache__" / "module.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    project.write("experiment.py", "two\n")
    project.write("new/module.py", "")
    project.write("old/other.py", "")
    (project.folder / "old" / "module.py").unlink()
    (project.folder / "bin" / "program").chmod(0o644)
    failed, printed = project.deploy()
    assert failed == {}
    assert f" {4 * 4} files sent" in printed
    for folder in folders:
        there = under(folder)
        assert there["experiment.py"] == "two\n"
        assert {"new/module.py", "old/other.py"} < there.keys()
        assert "old/module.py" not in there
        assert not os.access(folder / "bin" / "program", os.X_OK)
    assert not compiled.parent.exists()
    for name, content in own.items():
        assert (folders[0] / name).read_text() == content

    before = lan.learner1.bytes_received()
    (project.folder / "new" / "module.py").unlink()  # and nothing else
    (folders[3] / "experiment.py").write_text("mended here\n")
    failed, printed = project.deploy()
    assert " 0 files sent" in printed
    assert "changed since (experiment.py)" in failed.pop("actor3")
    assert (folders[3] / "experiment.py").read_text() == "mended here\n"
    assert failed == {}
    assert lan.learner1.bytes_received() - before < 150_000
    assert not (folders[1] / "new").exists()


def test_a_host_gets_the_users_modules_and_loses_those_that_a_run_does_not_need(project, lan):
    """Each workdir does; rows with a Python of their own get no set-up."""
    project.csv(ON_ACTOR1.format("/root/a b"), ON_ACTOR1.format("two") + "/usr/bin/python3")
    sources = {name: f"/root/own/{name}" for name in ("my/ppo.py", "other.py")}
    for name, source in sources.items():
        lan.laptop.path(source).parent.mkdir(parents=True, exist_ok=True)
        lan.laptop.path(source).write_text(f"{name}\n")
    failed, printed = project.deploy(sources=sources)
    assert failed == {}, printed
    assert "your modules are copied into the project's folder: my, other.py" in printed
    folders = [lan.actor1.path(name) for name in ("/root/a b", "/root/two")]
    assert [(folder / ".venv" / "told").exists() for folder in folders] == [True, False]
    for folder in folders:
        assert (folder / "experiment.py").exists()
        for name in sources:
            assert (folder / name).read_text() == f"{name}\n"
    other = sources.pop("other.py")
    assert project.deploy(sources=sources)[0] == {}
    for folder in folders:
        assert (folder / "my" / "ppo.py").exists()
        assert not (folder / "other.py").exists()
    with pytest.raises(AssertionError, match=f"{other} cannot be copied to hosts as launcher/mine"):
        project.deploy(sources={"launcher/mine.py": other})


def test_foreign_files_are_left_alone_and_the_reason_is_reported(project, lan):
    own, git = lan.actor1.path("/root/own"), lan.actor3.path("/root/git")
    own.mkdir()
    (own / "experiment.py").write_text("of somebody\n")
    (git / ".git").mkdir(parents=True)
    rows = ("actor,actor3,,,,/root/git,", "actor,10.77.1.12,,,,/root,")
    project.csv(ON_ACTOR1.format("own"), *rows)
    failed, _ = project.deploy()
    assert failed["10.77.1.21"].startswith("/root/own has files that were not deployed")
    assert "(experiment.py)" in failed["10.77.1.21"]
    assert "is a git clone" in failed["actor3"]
    assert "is not a folder for one project" in failed["10.77.1.12"]
    assert under(own) == {"experiment.py": "of somebody\n"}


def test_hosts_with_one_home_are_set_up_one_after_the_other_for_all_of_their_roles(tmp_path):
    if reason := hosts.why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    with hosts.Lan(shared=[tmp_path]) as lan:
        project = Project(lan)
        for host in (lan.learner1, lan.actor1):
            (host.home / "set-up").write_text(
                "open('.venv/log', 'a').write(' '.join(sys.argv[1:]) + '\\n')"
            )
        project.csv(*(row.replace(",,,,,", f",,,,{tmp_path}/ours,") for row in (ACTOR1, LEARNER)))
        (tmp_path / "ours").mkdir()
        lan.laptop.run("sh", "-c", f"echo > {tmp_path}/ours/experiment.py")
        assert len(project.deploy()[0]) == 2, "of somebody else"
        (tmp_path / "ours" / "experiment.py").unlink()
        failed, printed = project.deploy()
        assert failed == {}, printed
        sent = int(re.search(r"(\d+) files sent", printed)[1])
        assert sent == len(under(tmp_path / "ours")) - 2, "once, for both"
        assert (tmp_path / "ours" / ".venv" / "log").read_text().splitlines() == (
            ["--role=learner --device=cpu"] * 2
        )


def _add_what_takes_a_while(project):
    path = project.folder / "large"
    path.write_bytes(random.Random(7).randbytes(60_000_000))
    return path


@pytest.mark.slow
def test_a_frontend_killed_while_it_copies_leaves_nothing_half_done_and_the_next_goes_on(
    project, lan
):
    _add_what_takes_a_while(project)
    project.csv(ACTOR1)
    folder = lan.actor1.home / "impala_mm"
    first = project.start()
    first.until("10.77.1.21: copying the project: ")
    time.sleep(0.3)
    first.kill()
    until(lambda: not [line for line in lan.actor1.processes() if "python" in line], 20)
    assert sorted(path.name for path in folder.iterdir()) == [".deployed.json", ".deploying"]
    (arrived,) = folder.glob(".deploying/*/large")
    size, before = arrived.stat().st_size, lan.actor1.bytes_received()
    assert 1_000_000 < size < 60_000_000
    failed, printed = project.deploy()
    assert failed == {}, printed
    assert (folder / "large").read_bytes() == (project.folder / "large").read_bytes()
    assert not (folder / ".deploying").exists()
    assert lan.actor1.bytes_received() - before < 60_000_000 - size + 10_000_000


def test_a_full_disk_is_reported_and_does_not_affect_the_others(project, lan):
    lan.actor1.run("mkdir", "/root/small")
    lan.actor1.run("mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", "/root/small")
    project.csv(ON_ACTOR1.format("small"), ACTOR3)
    failed, printed = project.deploy()
    assert re.match(r"/root/small/\S+: No space left on device; ", failed.pop("10.77.1.21"))
    assert failed == {}
    assert "code and environment: 1 of 2 hosts ready" in printed
    there = lan.actor1.run("ls", "-A", "/root/small").stdout.split()
    assert there == [".deployed.json"], "others need the disk"
    assert (lan.actor3.home / "impala_mm" / "experiment.py").exists()


def test_set_ups_run_at_the_same_time_and_each_failure_says_what_to_do(project, lan):
    goes_on = (
        "home = pathlib.Path.home(); (home / 'begun').touch()\n"
        "while not (home / 'go').exists(): time.sleep(0.1)\n"
    )
    fails = (
        "print('[set-up] installing uv failed; the end of .setup.log:'); print('  ERROR: none'); "
        "sys.exit('If this machine cannot reach the package index, name a mirror')"
    )
    warns = (
        f"{goes_on}print('[set-up] WARNING: Horovod is not installed', flush=True); "
        "print('[set-up]   because: no C++ compiler')"
    )
    (lan.actor1.home / "set-up").write_text(f"{goes_on}{fails}")
    (lan.learner1.home / "set-up").write_text(warns)
    (lan.actor3.home / "set-up").write_text(goes_on)
    project.csv(LEARNER, ACTOR1, ACTOR3)
    running, homes = project.start(), [h.home for h in (lan.learner1, lan.actor1, lan.actor3)]
    until(lambda: all((home / "begun").exists() for home in homes), 60)
    for home in homes:
        (home / "go").touch()
    assert running.wait(60) == 0
    printed = running.printed()
    failed = json.loads(re.search("^failed (.*)$", printed, re.MULTILINE)[1])
    assert failed.keys() == {"10.77.1.21"}
    why = "installing uv failed; the end of .setup.log: ERROR: none; --wheelhouse=FOLDER copies"
    assert failed["10.77.1.21"].startswith(why)
    assert f"10.77.1.21 FAILED: {why}" in printed
    assert "10.77.1.11: WARNING: Horovod is not installed because: no C++" in printed
    assert "10.77.1.11: begins\n" in printed
    assert "actor3: ready\n" in printed


def test_a_set_up_that_is_interrupted_ends_on_its_host(project, lan):
    (lan.actor1.home / "set-up").write_text("import os; os.system('sleep 1234')")
    project.csv(ACTOR1, ACTOR3)
    running = project.start()
    running.until("10.77.1.21: begins")
    running.process.send_signal(signal.SIGINT)
    assert running.wait(10) != 0
    until(lambda: lan.actor1.processes() == [], 10)


def test_ignored_files_are_not_copied_even_without_a_git_clone(lan):
    project = Project(lan, git=False)
    project.write("hosts.csv", "job,ip,ssh_password\nactor,far,hunter2\n")
    project.write("data.csv", "x,y\n# not ssh_password\n")
    project.csv(ACTOR1)
    assert project.deploy()[0] == {}
    there = under(lan.actor1.home / "impala_mm")
    assert {"experiment.py", "data.csv", "launcher/supervise/agent_main.py"} < there.keys()
    assert not {"hosts.csv", "workers.csv", "runs/old/checkpoint"} & there.keys()
    assert "hunter2" not in json.dumps(there)


def test_a_host_without_a_suitable_python_is_reported():
    said = "[set-up] begins\n[set-up] this is Python 3.9, and TensorFlow needs 3.11: `apt-get"
    assert failure_reason(said) == "this is Python 3.9, and TensorFlow needs 3.11: `apt-get"
    full = "[set-up] too little disk: /x has 1.0 GB free and set-up needs 3 GB"
    assert failure_reason(full).startswith("too little disk: /x has 1.0 GB free")
    assert failure_reason("module: command not found\n") == "module: command not found"
    assert failure_reason("") == "its set-up printed nothing"


def test_a_destination_is_a_learners_if_one_of_its_rows_is():
    rows = [
        Worker(2, "learner", "10.9.9.1", cuda_visible_devices="0"),
        Worker(3, "actor", "10.9.9.1"),
        Worker(4, "actor", "10.9.9.1", workdir="/scratch", python="/opt/bin/python"),
        Worker(5, "evaluator", "10.9.9.2", cuda_visible_devices="1", python=".venv/bin/python"),
        Worker(6, "actor", "localhost"),
        Worker(7, "learner", "10.9.9.3", cuda_visible_devices="-1"),
    ]
    assert [site[:5] for site in find_destinations(rows)] == [
        ("10.9.9.1", "impala_mm", "learner", True, True),
        ("10.9.9.1", "/scratch", "actor", False, False),
        ("10.9.9.2", "impala_mm", "actor", False, True),
        ("10.9.9.3", "impala_mm", "learner", False, True),
    ]


def test_the_frontend_starts_nothing_where_a_host_is_not_ready(lan):
    """It deploys this project itself; its set-up on the host has no internet."""
    lan.laptop.path("/root/workers.csv").write_text(f"job,ip\n{LEARNER[:18]}\n{ACTOR1[:16]}\n")
    (lan.actor1.home / "impala_mm").mkdir()
    (lan.actor1.home / "impala_mm" / "README.md").write_text("mine")
    (lan.learner1.home / "impala_mm").write_text("a file")
    command = f"{sys.executable} {ROOT}/run_experiment_mm_raw.py --deploy --level_name=catch"
    ran = lan.laptop.run(
        "bash", "-c", f"cd /root; {command} --workers_csv_path=workers.csv", check=False
    )
    assert ran.returncode == 2, ran.stdout
    assert ran.stderr.startswith("error: no process was started: --deploy did not succeed")
    assert "10.77.1.21 FAILED: /root/impala_mm has files that were not deployed" in ran.stdout
    assert "10.77.1.11 FAILED: /root/impala_mm: " in ran.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Return a wheelhouse for actors."""
    folder = tmp_path_factory.mktemp("wheels")
    code, printed = run(sys.executable, "docker/wheelhouse.py", "--role=actor", folder, limit=900)
    assert code == 0, printed
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["clone", "installed package"])
def test_a_host_without_internet_is_set_up_from_a_wheelhouse_and_plays(
    origin, wheels, tmp_path, request
):
    """Everything is real; the hosts can reach nothing outside."""
    if reason := hosts.why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    frontend, fills = f"{sys.executable} {ROOT}/run_experiment_mm_raw.py", "make wheelhouse"
    shared = [tmp_path]
    if origin == "installed package":
        package = request.getfixturevalue("package")
        shared.append(package.home)
        frontend = f"{package.commands}/impala-mm-cluster"
        fills = "impala-mm wheelhouse wheels"
    with hosts.Lan(shared=shared) as lan:
        there = lan.laptop.path("/root/wheels")
        shutil.copytree(wheels, there, copy_function=os.link)
        rows = "job,ip,tf_port\nlearner,10.77.1.2,8001\nactor,10.77.1.21,\n"
        lan.laptop.path("/root/workers.csv").write_text(rows)
        command = (
            f"cd /root; {frontend} --deploy --wheelhouse=wheels --workers_csv_path=workers.csv "
            f"--level_name=catch"
        )
        numpy = next(there.glob("numpy-*"))
        numpy.rename(lan.laptop.path("/root") / numpy.name)
        ran = lan.laptop.run("bash", "-c", f"{command} --check", check=False)
        lacks = f"the wheelhouse wheels lacks numpy {numpy.name.split('-')[1]}: `{fills}"
        assert lacks in ran.stderr
        lan.laptop.path(f"/root/{numpy.name}").rename(numpy)

        frames = "--logdir=/root/run --total_environment_frames=20000"
        ran = lan.laptop.run("bash", "-c", f"{command} {frames}", check=False, timeout=900)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert (lan.actor1.home / "impala_mm" / ".venv" / "bin" / "python").exists()
        assert any(lan.laptop.path("/root/run").glob("metrics.jsonl"))
        assert "1 of 1 hosts ready" in ran.stdout
        ran = lan.laptop.run("bash", "-c", f"{command} --check", check=False, timeout=300)
        again = ran.stdout
        seconds = re.search(r"1 of 1 hosts ready; 0 files sent \((.*) s\)", again)[1]
        assert float(seconds) < 15
        assert "FAILED" not in again
        assert len(re.findall(r"versions .*tensorflow-cpu 2\.\d+\.\d", again)) in (1, 2)
