"""Every metric is described once, and sandbox/metrics.md is that description."""

import json

import pytest
from processes import EXPERIMENT, ROOT, free_port, run

from impala_mm.config import replay_mix
from impala_mm.records.metric_descriptions import find_description, render_page


def _run_keys(logdir, *flags):
    """Return the keys of the rows of a real run."""
    address = f"--learner_hosts=127.0.0.1:{free_port()}"
    code, printed = run(*EXPERIMENT, address, f"--logdir={logdir}", *flags)
    assert code == 0, printed
    lines = (logdir / "metrics.jsonl").read_text().splitlines()
    return set().union(*(json.loads(line) for line in lines))


def test_the_page_is_the_table():
    """Generate it by: python -m impala_mm.records.metric_descriptions > sandbox/metrics.md."""
    assert (ROOT / "sandbox" / "metrics.md").read_text() == render_page()


@pytest.mark.slow
def test_every_key_that_runs_write_is_described(tmp_path):
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
    undescribed = {key for key in keys if find_description(key) is None}
    assert not undescribed
