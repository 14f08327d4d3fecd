"""Tests of sandbox/benchmarks/plan.py: a CSV and measurements give figures and a sentence."""

import itertools
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
import plan_check
import throughput_model
from cost_model import ClusterPlan, CostFactors, Host, HostCosts, RunShape, WorkerSet

from impala_mm.config.settings import Config
from launcher.plan.workers_csv import Worker

BENCHMARKS = ROOT / "sandbox" / "benchmarks"
FREE = HostCosts(*[0.0] * len(HostCosts._fields))
# An actor with a core of its own plays 500 steps/s; a learner on a GPU trains on 1,500.
ACTOR = FREE._replace(cores=4, environment=0.0015, inference=0.0005)
LEARNER = FREE._replace(cores=8, training=1e-5, training_secs=1 / 1500)
SHAPE = RunShape(16, 20, 8, 160e3, 1e6, 1e6, 0.1)  # 8 kB per step, 1 MB per pull


def saved(folder, name, of, **more):
    """Write a file as --save does, measured with the default flags and these."""
    path = folder / name
    kind = Config.of_algorithm("impala")
    settings = host_costs.relevant_settings(kind(level_name="catch")) | more
    host_costs.save(host_costs.HostMeasurement(of, SHAPE, settings, {"cores": of.cores}), str(path))
    return path


def csv(folder, *rows):
    path = folder / "workers.csv"
    path.write_text("\n".join(["job,ip,count,learner", *rows]) + "\n")
    return f"--workers_csv_path={path}"


def planned(*words):
    return run(sys.executable, BENCHMARKS / "plan.py", "--level_name=catch", *words, limit=60)


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


def test_a_plan_says_what_binds_and_how_many_actors_would_balance_it(cluster):
    """2 actors supply 1,000 of the 1,500 steps/s that 3 could; the link carries 12.5 MB/s."""
    code, printed = planned(*cluster, "--gbit=0.1")
    assert code == 0, printed
    assert "worker set 0: a learner on gpu1, 2 actors on 2 hosts" in printed
    assert re.search(r"supply +1,000 steps/s\n.* train on +1,500 steps/s\n.* carry +1,562", printed)
    assert "  bottleneck: actors; about 3 actors needed (2 now)" in printed
    assert "predicted for all sets:            1,000 steps/s" in printed
    last = printed.strip().splitlines()[-1]
    assert last == (
        "bottleneck: actors; 3 actors with cores of their own (2 now) would reach the 1,500 "
        "steps/s that the learner can train on"
    )


def test_as_json_it_holds_the_same_and_says_which_limits_there_are_not(cluster):
    code, printed = planned(*cluster, "--gbit=0.05", "--json")
    assert code == 0, printed
    found = json.loads(printed)
    assert found["steps_per_second"] == pytest.approx(781.25, rel=1e-3)  # 6.25 MB/s of 8 kB
    (own,) = found["sets"]
    assert (own["binds"], own["cores"], own["enough"]) == ("network", None, 2)
    assert own["actors"] == {"cpu1": 1, "cpu2": 1}
    assert found["verdict"].startswith("bottleneck: network; fewer bytes")


def test_a_fit_of_real_runs_is_applied(cluster, tmp_path):
    fit = tmp_path / "fit.json"
    fit.write_text(json.dumps({"fit": CostFactors(actor=2.0, learner=1.0)._asdict()}))
    code, printed = planned(*cluster, "--json", f"--fit={fit}")
    assert code == 0, printed
    assert json.loads(printed)["steps_per_second"] == pytest.approx(500, rel=1e-3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--measured=gpu.json"], "--measured=gpu.json: it must have the form HOST=FILE"),
        (["--measured=*=nowhere.json"], "nowhere.json: No such file or directory"),
        (["--measured=*=README.md"], "README.md is not a measurement of a host"),
        (["--num_envs=99"], "was measured with --num_envs=16, but this run has --num_envs=99"),
        (["--env_groups=2"], "was measured with --env_groups=1, but this run has --env_groups=2"),
        (["--num_envs=auto"], "--num_envs=auto: give a number; auto means 32 for image"),
        (["--inference=auto"], "--inference=auto: give actor or learner; a run's first"),
        (["--inference=learner"], "measured without --inference=learner: measure that host with"),
        (["--workers_csv_path=nowhere.csv"], "nowhere.csv: No such file"),
        (["--fit=README.md"], "--fit=README.md contains no fit"),
        (["--gbit=0"], "--gbit=0.0: it must be at least 0.001"),
        (["--gbits=1"], "there is no flag --gbits; did you mean --gbit?"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(cluster, words, said):
    code, printed = planned(*cluster, *words)
    assert code == 2
    assert printed.startswith("error: ")
    assert said in printed
    assert len(printed.splitlines()) == 1


def test_a_learner_without_actors_is_refused(tmp_path):
    code, printed = planned(csv(tmp_path, "learner,a,,", "learner,b,,", "actor,c,1,"))
    assert code == 2
    assert "learner 1 has no actors" in printed


@pytest.mark.slow
def test_an_unknown_level_is_refused_in_the_words_of_experiment(tmp_path):
    code, printed = run(sys.executable, BENCHMARKS / "plan.py", "--level_name=catsh", limit=60)
    assert code == 2
    assert printed.startswith("error: there is no environment catsh; did you mean catch?")
    assert len(printed.splitlines()) == 1


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


def test_two_shapes_are_fitted_and_foretell_the_others(monkeypatch):
    """The factors of runs that cost 1.2 and 1.1 times their parts are found from two scenarios."""
    true, shapes, plans = CostFactors(1.2, 1.1), itertools.cycle(plan_check.SCENARIOS), {}
    costs = FREE._replace(cores=2, environment=4e-4, inference=2e-4)

    def measured(config, seconds):
        shape = SHAPE._replace(num_envs=config.num_envs, batch_size=config.batch_size)
        own, each = 1e-3 / config.batch_size, next(shapes)
        own = costs._replace(training_secs=40 * own, training=64 * own)
        plans[each.name] = ClusterPlan(
            {"here": Host(own)}, [WorkerSet("here", {"here": each.actors})], shape, true
        )
        return host_costs.HostMeasurement(own, shape, {}, {})

    def ran(shape, seconds):
        rate = throughput_model.predict(plans[shape.name]).total_rate
        return plan_check.RunMeasurement(rate, 2.0, 0.0, {}, {}, {})

    monkeypatch.setattr(plan_check.host_costs, "measure", measured)
    monkeypatch.setattr(plan_check, "run_scenario", ran)
    results = [plan_check.ScenarioResults(shape, [], []) for shape in plan_check.SCENARIOS]
    plan_check.measure_scenarios(results, 3, 1.0, 1.0)
    record = plan_check.check_predictions(results) | {
        "host": {"cores": 2, "processor": "a machine"}
    }
    factors = CostFactors(**record["fit"])
    assert 1 < factors.actor < true.actor, "the measured costs weigh as much as a run"
    assert 1.05 < factors.learner < true.learner
    assert [row["fitted"] for row in record["shapes"]] == [True] * 2 + [False] * 6
    for row in record["shapes"]:
        assert len(row["rates"]) == 3
        alone = row["unfitted"] / row["measured"] - 1
        assert alone > 0.05
        assert 0 < row["error"] < 0.6 * alone
    json.dumps(record, allow_nan=False)
    worst = max(row["error"] for row in record["shapes"][2:])
    said = f"largest error of the scenarios that were not fitted: {worst:.0%}"
    assert said in plan_check.format_table(record)


def test_a_check_that_is_interrupted_prints_and_saves_what_it_has(monkeypatch, tmp_path, capsys):
    ran = iter([500.0, 800.0])

    def run(shape, seconds):
        if (rate := next(ran, None)) is None:
            raise KeyboardInterrupt
        return plan_check.RunMeasurement(rate, 2.0, 0.0, {}, {}, {})

    of = host_costs.HostMeasurement(
        ACTOR._replace(training=1e-3, training_secs=1e-3), SHAPE, {}, {}
    )
    monkeypatch.setattr(plan_check.host_costs, "measure", lambda config, seconds: of)
    monkeypatch.setattr(plan_check, "run_scenario", run)
    path = tmp_path / "check.json"
    monkeypatch.setattr(sys, "argv", ["plan_check", f"--save={path}"])
    with pytest.raises(SystemExit) as ended:
        plan_check.main()
    assert ended.value.code == 130
    assert [row["rates"] for row in json.loads(path.read_text())["shapes"]] == [[500.0], [800.0]]
    assert capsys.readouterr().out.count("| fitted |") == 2
    with pytest.raises(SystemExit) as ended:  # before the first run has finished
        plan_check.main()
    assert ended.value.code == 130
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("flags", "other"),
    [
        ({"algorithm": "r2d2", "burn_in": 2}, {"burn_in": 5}),
        ({"algorithm": "r2d2", "mlp_sizes": "8"}, {"mlp_sizes": "512,512"}),
        ({"algorithm": "sac", "discrete_sac": True}, {"minibatch_steps": 128}),
        ({"algorithm": "ppo"}, {"epochs": 1}),
        ({"algorithm": "impala"}, {"loss_reduction": "mean"}),
    ],
)
def test_a_measurement_with_other_flags_of_the_algorithm_or_network_is_refused(
    tmp_path, capsys, flags, other
):
    kind, path = Config.of_algorithm(flags["algorithm"]), str(tmp_path / "host.json")
    config = kind(level_name="catch", **flags)
    settings = host_costs.relevant_settings(config)
    host_costs.save(host_costs.HostMeasurement(ACTOR, SHAPE, settings, {}), path)
    assert host_costs.load(path, config).costs == ACTOR
    with pytest.raises(SystemExit):
        host_costs.load(path, kind(level_name="catch", **flags | other))
    ((name, value),) = other.items()
    assert f"but this run has --{name}={value}: measure" in capsys.readouterr().err
    config = kind(level_name="catch", seed=5, total_environment_frames=9.0, **flags)
    assert host_costs.load(path, config).costs == ACTOR


@pytest.mark.slow
def test_this_machine_is_measured_and_a_plan_made_of_it(tmp_path):
    path = tmp_path / "here.json"
    code, printed = planned(f"--save={path}", "--measured_seconds=0.05", "--inference=learner")
    assert code == 0, printed
    kind = Config.of_algorithm("impala")
    found = host_costs.load(str(path), kind(level_name="catch", inference="learner"))
    assert found.shape.parameter_bytes > 1000
    assert found.shape.unroll_bytes > 20 * 50  # 20 steps with images of 10 x 5
    assert min(found.costs._replace(packing=1.0, turning=1.0, turning_secs=1.0)) > 0
    assert found.costs.training_secs < 0.01
    given = csv(tmp_path, "learner,a,,", "actor,a,2,"), f"--measured=*={path}"
    code, printed = planned(*given, "--inference=learner")
    assert code == 0, printed
    assert "predicted for all sets:" in printed
    code, printed = planned(*given)
    assert code == 2
    assert "was measured with --inference=learner: measure that host without it" in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "new_unrolls"),
    [
        (("--level_name=CartPole-v1", "--algorithm=dqn"), 4),  # an eighth of 32
        (("--level_name=CartPole-v1", "--algorithm=dqn", "--replay_ratio=0.5"), 2),
        (("--level_name=memory", "--algorithm=r2d2"), 8),
        (("--level_name=Pendulum-v1", "--algorithm=sac", "--random_steps=100"), 4),
    ],
)
def test_of_an_update_that_replays_only_the_new_steps_count(tmp_path, flags, new_unrolls):
    path = tmp_path / "here.json"
    command = [sys.executable, BENCHMARKS / "plan.py", *flags, "--measured_seconds=0.05"]
    code, printed = run(*command, f"--save={path}", limit=110)
    assert code == 0, printed
    shape = json.loads(path.read_text())["shape"]
    assert shape["batch_size"] == new_unrolls


@pytest.mark.slow
def test_predictions_are_held_against_real_runs(tmp_path):
    """The accuracy is not tested: other tests use this machine at the same time."""
    command = [sys.executable, BENCHMARKS / "plan_check.py", "--only=6", "--repeats=1"]
    command += ["--seconds=3", "--part_seconds=0.05", f"--save={tmp_path / 'check.json'}"]
    code, printed = run(*command, limit=110)
    assert code == 0, printed
    record = json.loads((tmp_path / "check.json").read_text())
    (row,) = record["shapes"]
    assert row["measured"] > 100
    assert not row["fitted"], "nothing is, without the scenarios that are fitted"
    assert row["predicted"] == row["unfitted"] > 100
