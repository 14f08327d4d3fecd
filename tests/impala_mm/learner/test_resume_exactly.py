"""A run that is killed and resumed equals, bit for bit, one that was never killed."""

import sys

import pytest
import resuming
import tensorflow as tf
from processes import ROOT, Process

from impala_mm.records import checkpoint


def _to_the_end(kind, folder, contents):
    """Train on the remaining batches; return the first messages and the last checkpoint."""
    said = []
    learner, watch = resuming.train(kind, folder, resuming.ALL, contents, said.append)

    def end_after_the_last():
        if learner.updates == resuming.ALL:
            learner.stop("enough")

    watch.run(end_after_the_last)
    path, about = checkpoint.find(folder)
    assert about.updates == resuming.ALL
    reader = tf.train.load_checkpoint(str(path / "variables"))
    return said, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


@pytest.mark.slow  # three learners in two processes; test_checkpoint compares what is saved
@pytest.mark.parametrize(
    ("kind", "least"), [("impala", 20), ("r2d2", 30), ("sac", 40), ("dqn", 20)]
)
def test_ten_updates_a_kill_and_ten_more_are_twenty(kind, least, tmp_path):
    """The runs train on recorded unrolls.

    IMPALA's has an LSTM, Adam's slots, the baseline's running error and two multipliers, R2D2's an
    LSTM and a target network, and DQN's noise, levels of quantiles and a target network. SAC has
    its replay of steps, from which it draws at random, target networks and the temperature.
    """
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    contents = resuming.record(kind)
    lines = [" ".join(unroll.hex() for unroll in batch) for batch in contents]
    (cut / "stream").write_text("\n".join(lines))
    script = ROOT / "tests" / "helpers" / "resuming.py"
    first = Process(sys.executable, str(script), str(cut), "10", kind, PYTHONPATH=str(ROOT))
    _, expected = _to_the_end(kind, whole, contents)
    # SAC saves its replay, so that only an update lets it save.
    first.until(
        r"checkpoint at update ([5-9]|10) " if kind == "sac" else "checkpoint at update 10 "
    )
    first.kill()
    _, about = checkpoint.find(cut)

    said, found = _to_the_end(kind, cut, contents)
    assert said[0].startswith("resumed at ")
    assert said[0].endswith(f"update {about.updates}")
    assert found.keys() == expected.keys()
    variables = [name for name in expected if name.startswith(("trained/", "carried/"))]
    assert len(variables) > least
    for name in variables:
        assert (found[name] == expected[name]).all(), name
