"""Populations of real processes: killed in the middle of an exchange, and on other hosts."""

import pytest
from cluster import FRONTEND
from far_cluster import FarCluster
from processes import Process
from supervising import until

from impala_mm.records import checkpoint, run_folder
from impala_mm.records.run_contents import read_records

POPULATION = """
level_name = "catch"
total_environment_frames = 2e5
learning_rate_schedule = "linear"
[axes]
learning_rate = {log_uniform = [1e-7, 1e-2]}
entropy_cost = [0.0, 0.01]
[search]
kind = "population"
trials = 2
share = 0.5
exchange_frames = 2e4
[needs]
actors = 1
"""


@pytest.mark.slow
def test_a_member_that_takes_from_another_has_its_values_in_use_after_a_kill(cluster):
    (cluster.folder / "population.toml").write_text(POPULATION)
    folder = cluster.folder / "population"
    members = [folder / "trials" / name for name in ("000", "001")]

    def rows(*events):
        return [r for r in read_records(folder / "population.jsonl") if r["event"] in events]

    def start():
        command = (f"--experiment={cluster.folder}/population.toml", f"--logdir={folder}")
        return Process(*FRONTEND, *command, "--skip_check", **cluster.environment)

    first = start()
    copied = until(lambda: rows("copied"), 600)[0]
    first.process.kill()  # while the member saves and stops, or has
    first.wait(20)
    taker, giver = members[copied["member"]], members[copied["from"]]
    before = (taker / "metrics.jsonl").read_bytes()
    second = start()
    until(lambda: rows("confirmed", "not confirmed"), 600)
    second.process.kill()
    confirmed = rows("confirmed", "not confirmed")[0]
    assert confirmed["event"] == "confirmed", confirmed["why"]
    assert rows("took")[0]["values"] == copied["values"]
    settings, values = run_folder.recorded_settings(taker), copied["values"]
    assert values != copied["before"]
    assert {name: settings[name] for name in values} == values
    rate = values["learning_rate"]
    assert rate * 0.3 < confirmed["learning_rate"] < rate  # by its schedule, between 2e4 and 1.4e5
    assert (taker / "metrics.jsonl").read_bytes().startswith(before)
    again = read_records(taker / "metrics.jsonl")[rows("took")[0]["row"] :]
    assert min(row["frames"] for row in again) >= copied["frames"]
    for path in checkpoint.all_in(taker / "checkpoints"):
        checkpoint.verify(path)
        assert checkpoint.read(path).frames >= copied["frames"]
    starts = [len(read_records(member / "starts.jsonl")) for member in (taker, giver)]
    assert starts == [2, 1]  # the other one was not touched


FAR = """
level_name = "catch"
total_environment_frames = 150000
[axes]
learning_rate = {uniform = [0.1, 1.0]}
[search]
kind = "population"
trials = 2
share = 0.5
exchange_frames = 10000
[needs]
actors = 1
"""


@pytest.mark.slow
def test_a_member_on_another_host_takes_from_one_there(lan):
    """Learners are stand-ins, whose checkpoints name the run that has written them."""
    far, laptop = FarCluster(lan), lan.laptop
    laptop.path("/root/far.toml").write_text(FAR)
    names = ("learner1", "learner2")
    rows = [far.row(job, name) for name in names for job in ("learner", "actor")]
    command = (*FRONTEND, "--experiment=/root/far.toml", "--logdir=/root/far", far.csv(*rows))
    running = laptop.start(*command, "--skip_check", "--env", "TOLD=member")
    folder = laptop.path("/root/far")

    def rows_of(*events):
        return [r for r in read_records(folder / "population.jsonl") if r["event"] in events]

    taken = until(lambda: rows_of("confirmed", "not confirmed"), 600)[0]
    assert taken["event"] == "confirmed", taken["why"]
    hosts = {row["trial"]: row["host"] for row in read_records(folder / "experiment.jsonl")
             if row["event"] == "started"}  # fmt: skip
    (there,) = [lan.hosts[n] for n in names if lan.hosts[n].address == hosts[taken["member"]]]
    run = there.path(f"/root/far/trials/{taken['member']:03d}")
    first = run / "checkpoints" / taken["checkpoint"]
    assert (first / "variables.data").read_text() == f"of {taken['from']:03d}"
    assert min(checkpoint.all_in(run / "checkpoints")) == first
    running.process.terminate()
    running.wait(60)
