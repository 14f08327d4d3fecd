"""Tests of sandbox/benchmarks/plan.py: a CSV and measurements give figures and a sentence."""

import json
import re
import sys

import pytest
from processes import ROOT, run

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names

import host_costs
import plan
from cluster_model import ClusterPlan, Host, HostCosts, RunShape, WorkerSet, predict
from real_run import RunMeasurement

from impala_mm.config.settings import Config
from launcher.plan.workers_csv import Worker

BENCHMARKS = ROOT / "sandbox" / "benchmarks"
# An actor with a core of its own plays 500 steps/s; a learner on a GPU trains on 1,500.
ACTOR = HostCosts(4, 1 / 500, 1 / 500, 1, 1)
LEARNER = HostCosts(8, 1, 1, 1 / 1500, 1e-5)
SHAPE = RunShape(160, 320, 8e3, 1e6, 1e6, 0.1)  # 8 kB per step, 1 MB per pull


def saved(folder, name, of, **more):
    """Write a file as --save does, measured with the default flags and these."""
    path = folder / name
    kind = Config.of_algorithm("impala")
    settings = host_costs.costly_settings(kind(level_name="catch")) | more
    host_costs.save(host_costs.HostMeasurement(of, SHAPE, settings, {"cores": of.cores}), str(path))
    return path


def csv(folder, *rows):
    path = folder / "workers.csv"
    path.write_text("\n".join(["job,ip,count,learner", *rows]) + "\n")
    return f"--workers_csv_path={path}"


@pytest.fixture
def planned(monkeypatch, capsys):
    """Return a function that plans with flags, and returns (exit code, output)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["plan.py", "--level_name=catch", *words])
        code = 0
        try:
            plan.main()
        except SystemExit as ended:
            code = ended.code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


@pytest.fixture
def cluster(tmp_path):
    """Make a plan of two hosts with four cores each, and one host with a GPU."""
    saved(tmp_path, "gpu.json", LEARNER)
    saved(tmp_path, "cpu.json", ACTOR)
    return (
        csv(tmp_path, "learner,gpu1,,", "actor,cpu1,1,", "actor,cpu2,1,"),
        f"--measured=gpu*={tmp_path / 'gpu.json'}",
        f"--measured=*={tmp_path / 'cpu.json'}",
    )


def test_a_plan_says_what_binds_and_how_many_actors_would_balance_it(cluster, planned):
    """2 actors supply 1,000 of the 1,500 steps/s that 3 could; the link carries 12.5 MB/s."""
    code, printed = planned(*cluster, "--gbit=0.1")
    assert code == 0, printed
    assert re.search(r"supply +1,000 steps/s\n.* train on +1,500 steps/s\n.* carry +1,562", printed)
    assert re.search(r"predicted for all sets: +1,000 steps/s", printed)
    assert "bottleneck: actors; about 3 actors needed (2 now)" in printed
    assert "1,500" in printed.strip().splitlines()[-1]


def test_as_json_it_holds_the_same_and_says_which_limits_there_are_not(cluster, planned):
    code, printed = planned(*cluster, "--gbit=0.05", "--json")
    assert code == 0, printed
    found = json.loads(printed)
    assert found["steps_per_second"] == pytest.approx(781.25, rel=1e-3)  # 6.25 MB/s of 8 kB
    (own,) = found["sets"]
    assert (own["binds"], own["cores"], own["enough"]) == ("network", None, 2)
    assert own["actors"] == {"cpu1": 1, "cpu2": 1}
    assert found["verdict"].startswith("bottleneck: network; fewer bytes")


@pytest.mark.parametrize("cores", [2, 16])
def test_costs_of_two_runs_predict_these_runs(cores):
    """What made the runs' figures is found again, though an update took cores from the actors."""
    true = HostCosts(cores, 0.0020, 0.0025, 0.0010, 0.0015)
    runs = []
    for actors in (cores, 1):
        here = WorkerSet("here", {"here": actors})
        rate = predict(ClusterPlan({"here": Host(true)}, [here], SHAPE)).total_rate
        shares = {"wait_share": 1 - rate * 0.001, "actor/waiting_share": 0.25}
        cpu = {"actor": 0.0025, "learner": 0.0015, "actor's delay": 0.75 / rate - 0.0020}
        runs.append(RunMeasurement(rate, 2.0, 0.0, 160, cpu, {}, {}, shares))
    assert host_costs.costs_of_runs(cores, 2, *runs) == pytest.approx(true, rel=1e-3)
    found = host_costs.costs_of_runs(cores, 1, *runs)
    assert found.acting_seconds == pytest.approx(0.0025), "it has one core at a time"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--measured=gpu.json"], "--measured=gpu.json"),
        (["--measured=*=nowhere.json"], "nowhere.json: No such file or directory"),
        (["--measured=*=README.md"], "README.md is not a measurement of a host"),
        (["--num_envs=99"], "--num_envs=16, but this run has --num_envs=99"),
        (["--num_envs=auto"], "--num_envs=auto: give a number"),
        (["--inference=auto"], "--inference=auto"),
        (["--workers_csv_path=nowhere.csv"], "nowhere.csv: No such file"),
        (["--gbit=0"], "--gbit=0.0"),
        (["--level_name=catsh"], "--level_name=catsh"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(cluster, planned, words, said):
    code, printed = planned(*cluster, *words)
    assert code == 2
    (line,) = printed.splitlines()
    assert line.startswith("error: ")
    assert said in line


def test_a_learner_without_actors_is_refused(tmp_path, planned):
    code, printed = planned(csv(tmp_path, "learner,a,,", "learner,b,,", "actor,c,1,"))
    assert code == 2
    assert "learner 1 has no actors" in printed


def _rows(*jobs):
    return [Worker(i, job, ip, count=n, learner=to) for i, (job, ip, n, to) in enumerate(jobs)]


def test_actors_are_dealt_as_the_frontend_deals_them():
    learners = [("learner", "a", 1, -1), ("learner", "127.0.0.1", 1, -1)]
    dealt = plan.deal_worker_sets(
        _rows(*learners, ("actor", "x", 3, -1), ("actor", "y", 2, -1)), False
    )
    assert dealt == [WorkerSet("a", {"x": 2, "y": 1}), WorkerSet("localhost", {"x": 1, "y": 1})]
    given = _rows(*learners, ("actor", "x", 5, 1), ("actor", "y", 1, 0))
    assert plan.deal_worker_sets(given, False) == [
        WorkerSet("a", {"y": 1}),
        WorkerSet("localhost", {"x": 5}),
    ]
    moved = plan.deal_worker_sets(given, True)
    assert moved == [WorkerSet("a", {"y": 1, "x": 2}), WorkerSet("localhost", {"x": 3})]


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ({"algorithm": "r2d2", "mlp_sizes": "8"}, {"mlp_sizes": "512,512"}),
        ({"algorithm": "ppo"}, {"epochs": 1}),
        ({"algorithm": "impala"}, {"loss_reduction": "mean"}),
    ],
)
def test_a_measurement_with_other_flags_of_the_algorithm_or_network_is_refused(
    tmp_path, capsys, flags, other
):
    kind, path = Config.of_algorithm(flags["algorithm"]), str(tmp_path / "host.json")
    config = kind(level_name="catch", **flags)
    settings = host_costs.costly_settings(config)
    host_costs.save(host_costs.HostMeasurement(ACTOR, SHAPE, settings, {}), path)
    assert host_costs.load(path, config).costs == ACTOR
    with pytest.raises(SystemExit):
        host_costs.load(path, kind(level_name="catch", **flags | other))
    ((name, value),) = other.items()
    assert f"but this run has --{name}={value}: measure" in capsys.readouterr().err
    config = kind(level_name="catch", seed=5, total_environment_frames=9.0, **flags)
    assert host_costs.load(path, config).costs == ACTOR


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        (("--level_name=catch", "--inference=learner"), 160 * 0.9),  # a tenth begins an episode
        (("--level_name=CartPole-v1", "--algorithm=dqn", "--replay_ratio=0.5"), 2 * 8),
    ],
)
def test_this_machine_is_measured_and_a_plan_made_of_it(tmp_path, flags, steps):
    path = tmp_path / "here.json"
    measured = (f"--save={path}", "--measured_seconds=2")
    command = [sys.executable, BENCHMARKS / "plan.py", *flags]
    code, printed = run(*command, *measured, limit=200)
    assert code == 0, printed
    found = json.loads(path.read_text())
    assert min(found["costs"].values()) > 0
    assert found["shape"]["steps_per_update"] == pytest.approx(steps, rel=0.1)
    assert found["shape"]["step_bytes"] > 20
    given = csv(tmp_path, "learner,a,,", "actor,a,2,"), f"--measured=*={path}"
    code, printed = run(*command, *given, limit=60)
    assert code == 0, printed
    assert "predicted for all sets:" in printed
