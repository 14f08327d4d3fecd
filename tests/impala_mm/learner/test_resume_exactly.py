"""A run that is killed and resumed equals, bit for bit, one that was never killed."""

import sys

import resuming
import tensorflow as tf
from processes import ROOT, Process

from impala_mm.records import checkpoint


def _to_the_end(folder, contents):
    """Train on the remaining batches; return the first messages and the last checkpoint."""
    said = []
    learner, watch = resuming.train(folder, resuming.ALL, contents, said.append)

    def end_after_the_last():
        if learner.updates == resuming.ALL:
            learner.stop("enough")

    watch.run(end_after_the_last)
    path, about = checkpoint.find(folder)
    assert about.updates == resuming.ALL
    reader = tf.train.load_checkpoint(str(path / "variables"))
    return said, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def test_ten_updates_a_kill_and_ten_more_are_twenty(tmp_path):
    """The run has an LSTM, Adam's slots, the baseline's running error and two multipliers.

    It trains on recorded unrolls.
    """
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    contents = resuming.record()
    lines = [" ".join(unroll.hex() for unroll in batch) for batch in contents]
    (cut / "stream").write_text("\n".join(lines))
    script = ROOT / "tests" / "helpers" / "resuming.py"
    first = Process(sys.executable, str(script), str(cut), "10", PYTHONPATH=str(ROOT))
    _, expected = _to_the_end(whole, contents)
    first.until("checkpoint at update 10 ")
    first.kill()

    said, found = _to_the_end(cut, contents)
    assert said[0].startswith("resumed at ")
    assert said[0].endswith("update 10")
    assert found.keys() == expected.keys()
    variables = [name for name in expected if name.startswith(("trained/", "carried/"))]
    assert len(variables) > 20
    for name in variables:
        assert (found[name] == expected[name]).all(), name
