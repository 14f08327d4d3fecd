"""What an actor notices of environments that damage its process."""

import subprocess
import sys

from processes import ROOT

# Steps an environment that closes all files but the first three in its step 2.
PROGRAM = """
import os, types
import numpy as np
from impala_mm.environments.types import Step
from impala_mm.runtime.heartbeat import Heartbeat

class Closes:
    spec, steps = types.SimpleNamespace(action_repeats=1), 0

    def step(self, actions):
        self.steps += 1
        if self.steps == 2:
            os.closerange(3, 4096)
            os.open("/dev/zero", os.O_RDONLY)  # it gets the number of one that was closed
        no = np.zeros([1], bool)
        return Step(np.zeros([1]), no, no, np.zeros([1, 1]), no, no)

    def episodes(self):
        return []

stepper = EnvironmentStepper(Closes(), 20, Heartbeat())
stepper.step([0])
try:
    stepper.step([0])
except DescriptorsClosed as error:
    print("in step", stepper._environments.steps, error)
"""


def test_an_environment_that_closes_all_descriptors_is_noticed_in_its_step():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("in step 2 ")
    assert "os.closerange" in done.stdout
