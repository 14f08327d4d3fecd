"""Tests of sandbox/benchmarks/gpu.py: its trainings' flags, and two trainings without a GPU."""

import json
import sys

import pytest
from processes import ROOT, run

from impala_mm.config import command_line
from impala_mm.config.settings import Config

sys.path.append(
    str(ROOT / "sandbox" / "benchmarks")
)  # the scripts import each other by short names
import gpu


@pytest.mark.parametrize("line", gpu.lines(16), ids=lambda line: line.name)
def test_experiment_has_the_flags_of_each_training(line):
    """The actors of a machine with 16 cores leave one to the learner, and each learner has some."""
    (config,), _ = command_line.parse(["experiment.py", *line.flags.split()], "", Config)
    assert config.num_actors == (14 if config.num_learners == 2 else 15)


def test_a_name_of_no_line_is_refused(tmp_path):
    saved = tmp_path / "gpu.json"
    script = ROOT / "sandbox" / "benchmarks" / "gpu.py"
    code, output = run(sys.executable, script, f"--save={saved}", "--only=nothing")
    assert code == 2
    assert "--only=nothing: no line has this in its name" in output
    assert not saved.exists()


@pytest.mark.slow
def test_it_measures_without_a_gpu_and_a_clock_that_does_not_reach_its_return_says_so(tmp_path):
    """Unless --device=cpu is given, a machine whose TensorFlow sees no GPU is refused at once."""
    saved = tmp_path / "gpu.json"
    command = [sys.executable, ROOT / "sandbox" / "benchmarks" / "gpu.py", f"--save={saved}"]
    code, output = run(*command, CUDA_VISIBLE_DEVICES="-1")
    assert code == 1
    assert "TensorFlow sees no GPU" in output
    assert not saved.exists()
    options = ["--device=cpu", "--minutes=2.5", "--only=Pong to"]
    code, output = run(*command, *options, limit=300, CUDA_VISIBLE_DEVICES="-1")
    assert code == 0, output
    found = json.loads(saved.read_text())
    (figures,) = found["lines"].values()
    assert "not reached" in figures, figures
    assert -21 <= figures["return"] < 18
    assert figures["seconds"] > 10
    assert found["gpus"] == []
