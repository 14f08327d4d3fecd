"""A learner and its actor on two hosts, and somebody on a third who has no credentials."""

import re
import time

import pytest
from hosts import give_token
from processes import EXPERIMENT, ROOT
from rows import read_rows
from supervising import until

pytestmark = pytest.mark.slow

_PORT = "--learner_hosts=10.77.1.11:8001"
_FLAGS = (*EXPERIMENT, "--level_name=catch", _PORT)
_STRANGER = (
    "import sys, time; sys.path.insert(0, sys.argv[1]); import hostile_message;"
    "kept = [hostile_message.send_hostile('10.77.1.11:8001') for _ in range(300)]; time.sleep(8)"
)


def test_training_goes_on_whatever_a_stranger_on_another_host_sends(lan):
    give_token(lan.learner1, lan.actor1)
    learner = lan.learner1.start(
        *_FLAGS, "--job_name=learner", "--logdir=/root/run", "--total_environment_frames=1e9"
    )
    learner.until("listening at 10.77.1.11:8001", seconds=90)
    actor = lan.actor1.start(*_FLAGS, "--job_name=actor")
    learner.until("actor 0 on actor1 joined", seconds=90)
    learner.until(r"[1-9][0-9,]* frames \|", seconds=60)
    run = lan.learner1.path("/root/run")

    def frames():
        return read_rows(run)[-1]["frames"]

    time.sleep(6)
    before, since = frames(), time.monotonic()
    time.sleep(8)
    undisturbed = (frames() - before) / (time.monotonic() - since)
    before, since = frames(), time.monotonic()
    lan.actor2.run("python3", "-c", _STRANGER, ROOT / "tests" / "helpers")
    disturbed = (frames() - before) / (time.monotonic() - since)
    print(f"{disturbed:,.0f} frames/s beside the stranger, {undisturbed:,.0f} without")
    assert disturbed > 0.4 * undisturbed

    def refused():
        lines = re.findall(r"(\d+) connections? refused from 10\.77\.1\.22 \(", learner.printed())
        return sum(map(int, lines))

    until(lambda: refused() == 300, seconds=80)
    assert learner.printed().count("refused from") <= 3

    # One with a token file of its own is told what to do.
    ran = lan.learner2.run(*_FLAGS, "--job_name=actor", "--task=5", check=False, timeout=120)
    assert ran.returncode == 1
    assert "copy its token file to this host (scp LEARNER:.config/impala_mm" in ran.stdout
    assert actor.process.poll() is None


def test_an_actor_finds_its_learner_again_after_a_cut_and_after_the_learners_end(lan):
    give_token(lan.learner1, lan.actor1)
    command = (*_FLAGS, "--job_name=learner", "--logdir=/root/run")
    command = (*command, "--total_environment_frames=1e9")
    learner = lan.learner1.start(*command)
    actor = lan.actor1.start(*_FLAGS, "--job_name=actor")
    learner.until("actor 0 on actor1 joined", seconds=90)
    learner.until(r"[1-9][0-9,]* frames \|", seconds=90)  # the actor knows that it is connected
    lan.actor1.cut()
    actor.until(r"trying again", seconds=60)
    lan.actor1.restore()
    learner.until("actor 0 on actor1 joined", seconds=30)
    learner.kill()
    again = lan.learner1.start(*command)
    again.until("actor 0 on actor1 joined", seconds=90)
    again.until(r"[1-9][0-9,]* frames \|", seconds=60)


@pytest.mark.parametrize(
    ("security", "inference", "direction"),
    [("none", "actor", "both"), ("auto", "learner", "to the actor")],
)
def test_an_actor_is_back_within_seconds_after_a_minute_without_network(
    lan, security, inference, direction
):
    give_token(lan.learner1, lan.actor1)
    flags = (*_FLAGS, f"--transport_security={security}", f"--inference={inference}")
    learner = lan.learner1.start(
        *flags, "--job_name=learner", "--logdir=/root/run", "--total_environment_frames=1e9"
    )
    actor = lan.actor1.start(*flags, "--job_name=actor")
    learner.until("actor 0 on actor1 joined", seconds=90)
    learner.until(r"[1-9][0-9,]* frames \|", seconds=90)  # the actor knows that it is connected
    if direction == "both":
        lan.actor1.cut()
    else:
        lan.learner1.lose_packets_to(lan.actor1)
    time.sleep(62)
    assert "trying again" in actor.printed()
    lan.actor1.restore()
    lan.learner1.lose_packets_to(lan.actor1, lost=False)
    learner.until("actor 0 on actor1 joined", seconds=10)


def test_a_tunnel_of_ssh_to_localhost_leads_to_the_learner(lan):
    """As `sandbox/cluster.md` describes it."""
    give_token(lan.learner1, lan.laptop)
    local = "--learner_hosts=localhost:8001"
    learner = lan.learner1.start(
        *(*EXPERIMENT, "--level_name=catch", local, "--job_name=learner", "--logdir=/root/run"),
        "--total_environment_frames=1e9",
    )
    learner.until("listening at localhost:8001", seconds=90)
    lan.laptop.start(
        *("ssh", "-i", lan.key, "-F", lan.ssh_config, "-o", "StrictHostKeyChecking=no"),
        *("-N", "-L", "8001:localhost:8001", "10.77.1.11"),
    )
    until(
        lambda: lan.laptop.run("sh", "-c", "ss -ltn | grep -q :8001", check=False).returncode == 0
    )
    lan.laptop.start(*EXPERIMENT, "--level_name=catch", local, "--job_name=actor")
    learner.until("actor 0 on laptop joined", seconds=90)
    learner.until(r"[1-9][0-9,]* frames \|", seconds=60)
