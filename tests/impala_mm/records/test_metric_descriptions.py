"""Every metric is described once, and sandbox/metrics.md is that description."""

import json
import types

import numpy as np
import pytest
from processes import EXPERIMENT, ROOT, free_port, needs_horovod, run

from impala_mm.config import replay_mix
from impala_mm.learner.row_writer import RowWriter
from impala_mm.records import metrics
from impala_mm.records.metric_descriptions import METRICS, find_description, render_page


def _run_keys(logdir, *flags):
    """Return the keys of the rows of a real run."""
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    code, printed = run(*EXPERIMENT, address, f"--logdir={logdir}", *flags)
    assert code == 0, printed
    lines = (logdir / "metrics.jsonl").read_text().splitlines()
    return set().union(*(json.loads(line) for line in lines))


def _aggregator_keys():
    """Return the keys of a row that the monitor writes for two learners on two Atari games."""
    scores = {"Pong": (-20.0, 20.0), "Breakout": (0.0, 30.0)}
    aggregator = metrics.MetricsAggregator(scores, learners=2)
    for rank in range(2):
        meter = metrics.Meter()
        meter.add_times(train=0.0)  # the first update's times are left out
        meter.add_times(wait=9.0, exchange=9.0, train=9.0, rest=9.0)
        meter.add_actor_times({"playing": 1e-9} | dict.fromkeys(metrics.ACTOR_TIMES, 1e-10))
        # inference_batch comes from the server, with --inference=learner, and replay_share from an
        # algorithm's source.
        values = {"queue_fill": 1.0, "policy_lag": 2.0, "replay_age": 9.0, "replay_uses": 1.0}
        meter.add(values | {"inference_batch": 8.0, "replay_share": 0.5}, 8)
        for level in scores:
            meter.add_episodes(level, np.array([(1, 1.0, 9), (0, 1.0, 9)], np.float32))
        aggregator.merge(rank, meter.take_reading())
    learner = types.SimpleNamespace(
        **{"frames": 8.0, "steps": 8, "updates": 1, "updated_at": 1.0, "sync_checks": 1},
        **{"sync_repairs": 0, "offline_updates": 0, "offline_left": 0},
        meter=metrics.Meter(),
        has_received=True,
        limits=types.SimpleNamespace(frames=1e9, seconds=1e9),
        weight_size=0.1,
        variables_complete=True,
    )
    status = types.SimpleNamespace(
        config=types.SimpleNamespace(check_sync_every=1, deterministic_run=False),
        group=types.SimpleNamespace(size=2),
        learner=learner,
        server=types.SimpleNamespace(rounds=True, has_received=True),
        aggregator=aggregator,
        seconds=1.0,
        reports=[],
        actor_counts=lambda: {"actors": 2},
        filling=lambda: (0, 0),
        silence=str,
        say=print,
    )
    return set(RowWriter(status, types.SimpleNamespace(write=lambda row: None)).write())


def test_the_page_is_the_table():
    """Generate it by: python -m impala_mm.records.metric_descriptions > sandbox/metrics.md."""
    assert (ROOT / "sandbox" / "metrics.md").read_text() == render_page()


@pytest.mark.slow
def test_every_key_that_runs_write_is_described_and_every_description_is_of_such_a_key(tmp_path):
    flags = ("--level_name=catch", "--stop_at_return=2", "--total_environment_frames=30000")
    targets = ("--target_entropy=0.5", "--target_kl_pi_mu=1", "--target_kl_mu_pi=1")
    keys = _run_keys(tmp_path / "impala", *flags, *targets, "--target_kl_ref_pi=1")
    keys |= _run_keys(tmp_path / "ppo", *flags, "--algorithm=ppo", "--value_normalization=popart")
    teacher = "--teacher=tests.helpers.scripted:catcher"
    keys |= _run_keys(tmp_path / "student", *flags, teacher, "--teacher_method=qdagger")
    for name in ("awr", "vmpo"):
        keys |= _run_keys(tmp_path / name, *flags, f"--algorithm={name}")
    kinds = ",".join(f"{kind}:0.2:200" for kind in replay_mix.KINDS.names if kind != "queue")
    replay = (f"--replay=queue:0.2,{kinds}", "--batch_size=10", "--trust_region=0.3")
    cloning = ("--policy_cloning_cost=0.01", "--value_cloning_cost=0.005")
    keys |= _run_keys(tmp_path / "replay", *flags, *replay, *cloning)
    phases = (teacher, "--offline_updates=20", "--teacher_steps=1000", "--guide_steps=3")
    of_values = ("--distill=best_action", "--cql_cost=1", "--margin_cost=1")
    of_values += ("--teacher_data_share=0.25",)
    keys |= _run_keys(tmp_path / "dqn", *flags, "--algorithm=dqn", *phases, *of_values)
    games = f"--teacher_data={tmp_path / 'dqn' / 'teacher_data/learner-0'}"
    keys |= _run_keys(tmp_path / "cloning", *flags, games, "--offline_updates=20")
    few = ("--random_steps=100", "--updates_per_step=0.1", "--total_environment_frames=1000")
    sac = ("--algorithm=sac", "--discrete_sac", "--compile_updates=false", *few)
    keys |= _run_keys(tmp_path / "sac", *flags[:2], *sac)
    keys |= _aggregator_keys()
    undescribed = {key for key in keys if find_description(key) is None}
    assert not undescribed
    of_kinds = {key for key, found in METRICS.items() if found.parts == "kind"}
    assert not METRICS.keys() - keys - of_kinds
    parts = {key.partition("/") for key in keys - METRICS.keys()}
    assert {name for name, _, part in parts if part in replay_mix.KINDS.names} == of_kinds
    assert {name for name, _, part in parts if part.startswith("learner")} == {
        key for key, found in METRICS.items() if found.parts == "learner"
    }
    assert {name for name, _, part in parts if part == "Pong"} == {
        key for key, found in METRICS.items() if found.parts == "level"
    }


@pytest.mark.slow
@needs_horovod
def test_every_key_of_several_learners_on_cartpole_is_described(tmp_path):
    keys = _run_keys(
        tmp_path,
        *("--num_learners=2", "--num_actors=2", "--inference=learner", "--check_sync_every=20"),
        *("--stop_at_return=1e9", "--total_environment_frames=60000"),
    )
    assert {"wait_share/learner1", "sync_checks", "inference_batch"} <= keys
    assert not {key for key in keys if find_description(key) is None}


@pytest.mark.parametrize("key", ["grad_norm/learner0", "wait_share/learnerX", "x", "games/Pong"])
def test_other_keys_have_no_description(key):
    assert find_description(key) is None
