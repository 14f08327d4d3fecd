"""Repeated kills during training, and six minutes of all faults; part of `make test-slow`."""

import random
import sys

import numpy as np
import pytest
import remotely
import telling
from deadlines import Deadline
from hosts import why_not
from processes import EXPERIMENT, ROOT, Process, needs_horovod, run

from impala_mm.algorithms import agent
from impala_mm.config.command_line import parse
from impala_mm.config.settings import Config
from impala_mm.environments import from_flags, seeds

pytestmark = pytest.mark.slow


def test_after_25_kills_of_4_actors_no_unroll_mixes_environments_or_skips_a_step(tmp_path):
    """The learner infers; observations identify their environment, its instance and the step."""
    flags = ["--level_name=telling:Telling-v0", "--inference=learner", "--num_envs=6"]
    (config,), _ = parse(["", *flags], "", Config)
    identity = agent.stepping_identity(config, from_flags.level_specs(config))
    token = tmp_path / "token"
    token.write_text(remotely.TOKEN)
    token.chmod(0o600)
    witness, moments = telling.Witness(), random.Random(0)
    with remotely.remote(remotely.Random(config.level_name, 5), identity=identity) as there:
        flags += [f"--learner_hosts={there.address}", f"--token_file={token}", "--job_name=actor"]
        flags += ["--transport_security=none"]  # this learner has no front
        environment = {"PYTHONPATH": str(ROOT / "tests" / "helpers")}

        def start(task):
            return Process(*EXPERIMENT, f"--task={task}", *flags, **environment)

        def lives(task):
            """Count the instances of a task's first environment that were trained on so far."""
            number = seeds.of_actor(config.seed, task)
            return sum(life[0] == np.float32(number) for life in witness.lives)

        def learn(count):
            entries, _, _ = there.taken(count)
            witness.sees(entries.observation.numpy(), entries.first.numpy())

        actors, known = [start(task) for task in range(4)], [0] * 4
        for _ in range(25):
            task, deadline = moments.randrange(4), Deadline(60)
            while lives(task) == known[task]:  # until it plays again after the kill
                assert not deadline.is_over(), actors[task].printed()
                learn(moments.randrange(1, 20))
            for _ in range(moments.randrange(3)):
                learn(moments.randrange(1, 20))
            actors[task].kill()
            for _ in range(
                int(there.server.queue.size())
            ):  # the unrolls that it had sent before the kill
                learn(1)
            known[task] = lives(task)
            actors[task] = start(task)
        for actor in actors:
            actor.kill()
    assert len(witness.lives) > 25 * 3


@needs_horovod
def test_a_cluster_that_is_disturbed_for_minutes_counts_and_trains_everything_once(tmp_path):
    """Another seed each time, which is printed with all that was done."""
    if reason := why_not():
        pytest.skip(f"no simulated hosts: {reason}")
    program = ROOT / "tests" / "chaos" / "run.py"
    code, printed = run(
        sys.executable, program, "--minutes=6", f"--keep={tmp_path}/files", limit=1500
    )
    print(printed)
    assert code == 0
