"""What a module of --import registers from outside: networks, a kind of teacher, an export."""

import shutil
import sys

import numpy as np
import pytest
from processes import ROOT, run
from saved_run import save

EXPERIMENT = (sys.executable, str(ROOT / "experiment.py"), "--import=own_names")


@pytest.fixture
def here(tmp_path):
    """A folder with the examples of the pages."""
    for name in ("own_names.py", "own_network.py", "own_teacher.py", "own_export.py"):
        shutil.copy(ROOT / "sandbox" / name, tmp_path)
    return tmp_path


def test_a_student_of_ones_own_network_has_a_teacher_of_ones_own_kind(here):
    flags = ("--level_name=CartPole-v1", "--validate", "--teacher=weights.npy")
    np.save(here / "weights.npy", np.ones([4, 2]))
    code, printed = run(*EXPERIMENT, *flags, "--agent_name=TwinAgent", cwd=here)
    assert code == 0, printed
    assert "TwinAgent" in printed


@pytest.mark.slow  # the student above imports its modules in the same way
def test_an_export_has_a_format_of_ones_own(here):
    save(here / "run", level_name="CartPole-v1")
    export = ("--mode=export", f"--logdir={here / 'run'}", "--export_format=npz")
    code, printed = run(*EXPERIMENT, *export, cwd=here)
    assert code == 0, printed
    with np.load(here / "run" / "export" / "weights.npz") as arrays:
        assert arrays["arr_0"].dtype == np.float32


_FAILING_CALL = """
import atexit

import tensorflow as tf


def fail():
    raise RuntimeError("a call failed")


@atexit.register
def call():
    try:
        tf.function(lambda: tf.numpy_function(fail, [], tf.int32))()
    except tf.errors.OpError:
        print("the call has failed")
"""


def test_tensorflow_logs_nothing_of_its_own_if_a_module_of_import_loads_it(tmp_path):
    """Else an actor that arrives after a run's end would leave a traceback in the learner's log."""
    (tmp_path / "calling.py").write_text(_FAILING_CALL)
    flags = ("--import=calling", "--level_name=CartPole-v1", "--validate")
    code, printed = run(*EXPERIMENT[:2], *flags, cwd=tmp_path)
    assert code == 0, printed
    assert "the call has failed" in printed
    assert "Traceback" not in printed


def test_a_module_that_computes_while_it_is_imported_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "hasty.py").write_text("import tensorflow as tf\n\nONE = tf.constant(1)\n")
    flags = ("--import=hasty", "--level_name=CartPole-v1", "--validate")
    code, printed = run(*EXPERIMENT[:2], *flags, cwd=tmp_path)
    assert code != 0, printed
    assert "compute within a function" in printed
    assert "Traceback" not in printed
