"""The bytes of one step on the wire, by the counters of the network interfaces."""

import json
import signal
import time

import pytest
from hosts import give_token
from processes import EXPERIMENT
from supervising import until

from impala_mm.algorithms import agent
from impala_mm.config import command_line
from impala_mm.config.settings import Config
from impala_mm.data.trajectory import UnrollCodec

PONG = ("--level_name=PongNoFrameskip-v4", "--agent_name=ShallowConvAgent")
PIXELS, LENGTH = 84 * 84, Config().unroll_length
# Bytes per step: each frame once, per unroll 4 frames of the overlapping entry; 200 for the rest.
MOST = PIXELS * (LENGTH + 4) / LENGTH + 200


def test_an_unroll_holds_each_frame_once():
    pytest.importorskip("ale_py")
    (config,), _ = command_line.parse(["experiment.py", *PONG], "", Config)
    unroll = agent.make_agent(config, number=0).algorithm.unroll
    pixels = PIXELS * (LENGTH + 4)
    assert pixels < UnrollCodec(unroll).size <= MOST * LENGTH - 100 * LENGTH, (
        "half is left for headers"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compression", "least", "most"),
    [("none", PIXELS * (LENGTH + 4) / LENGTH, MOST), ("lz4", 0, 1000)],
)
def test_an_actor_sends_no_more_than_its_frames_once(lan, compression, least, most):
    learner, actor = lan.learner1, lan.actor1
    give_token(learner, actor)
    command = (*EXPERIMENT, *PONG, f"--learner_hosts={learner.address}:8001")
    command = (*command, f"--compression={compression}")
    # A batch has the unrolls of one message, so that all received unrolls are trained on.
    numbers = ("--batch_size=4", "--num_envs=4", "--total_environment_frames=1e9")
    learning = learner.start(*command, *numbers, "--job_name=learner", "--logdir=/root/run")
    learning.until("weights", seconds=90)
    before = learner.bytes_received(), actor.bytes_received()
    acting = actor.start(*command, *numbers, "--job_name=actor")
    rows = learner.path("/root/run/metrics.jsonl")

    def steps():
        lines = rows.read_text().splitlines() if rows.exists() else []
        return json.loads(lines[-1])["steps"] if lines else 0

    until(lambda: steps() > 5000, seconds=120)
    acting.process.send_signal(signal.SIGTERM)
    acting.wait(30)
    time.sleep(6)  # until at least one more row is written
    learning.process.send_signal(signal.SIGUSR1)
    assert learning.wait(30) == 0, learning.printed()
    up, down = learner.bytes_received() - before[0], actor.bytes_received() - before[1]
    print(f"{steps()} steps: {up / steps():.0f} bytes up and {down / steps():.0f} down per step")
    assert least < up / steps() <= most
