"""The profiler traces the chosen updates and writes the trace to the run's folder."""

import tensorflow as tf

from impala_mm.learner.train_step import UpdateProfiler


@tf.function
def _update(x):
    return tf.linalg.matmul(x, x)


def _train(text, folder, updates):
    said = []
    profile = UpdateProfiler(text, folder, said.append)
    for _ in range(updates):
        with profile.update():
            _update(tf.ones([64, 64]))
    profile.stop()
    return said, [path for path in folder.rglob("*.xplane.pb") if path.stat().st_size]


def test_the_updates_asked_for_are_traced_by_number(tmp_path):
    said, traces = _train("2:4", tmp_path, updates=6)
    assert len(said) == 1
    assert f"traced updates 2 to 3: {tmp_path}/plugins/profile" in said[0]
    assert len(traces) == 1
    content = traces[0].read_bytes()
    assert b"update" in content
    assert b"MatMul" in content


def test_a_run_that_ends_before_the_trace_does_keeps_what_there_is(tmp_path):
    said, traces = _train("1:100", tmp_path, updates=3)
    assert "traced updates 1 to 2" in said[0]
    assert len(traces) == 1


def test_unset_there_is_none(tmp_path):
    assert _train("", tmp_path, updates=3) == ([], [])
