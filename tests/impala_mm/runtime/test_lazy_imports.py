"""Modules that load when they are used, and what of TensorFlow is left for then."""

import importlib
import subprocess
import sys

import pytest

from impala_mm.runtime.lazy_imports import lazily_imported


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A function that writes a module `slow_<name>`, which says when it is run; its imports end."""
    ran = []
    monkeypatch.setattr(sys, "_ran", ran, raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, text):
        file = tmp_path / f"slow_{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"import sys\nsys._ran.append({name!r})\n{text}")
        return ran

    yield write
    for name in [name for name in sys.modules if name.startswith("slow_")]:
        del sys.modules[name]


def _import(*names):
    with lazily_imported(names):
        return [importlib.import_module(name) for name in names]


def test_a_deferred_module_runs_once_and_when_it_is_first_used(written):
    ran = written("a", "x = 1\ndef y(): return x")
    (module,) = _import("slow_a")
    import slow_a  # noqa: PLC0415

    assert slow_a is module
    assert not ran, "who imports it twice does not use it"
    assert (slow_a.y(), slow_a.x, ran) == (1, 1, ["a"])
    from slow_a import x  # noqa: PLC0415

    assert (x, ran) == (1, ["a"])
    assert type(slow_a) is type(sys)
    with pytest.raises(AttributeError, match="slow_a"):
        slow_a.z  # noqa: B018


def test_modules_imported_later_or_by_other_names_are_as_ever(written):
    ran = written("a", "")
    with lazily_imported(["slow_b"]):
        importlib.import_module("slow_a")
        with pytest.raises(ModuleNotFoundError, match="slow_b"):
            importlib.import_module("slow_b")
    assert ran == ["a"]
    written("b", "")
    importlib.import_module("slow_b")
    assert ran == ["a", "b"]


def test_two_that_use_each_other_load_together(written):
    written("a", "import slow_b\nx = 1\ny = slow_b.x")
    ran = written("b", "import slow_a\nx = slow_a.x + 1")
    a, b = _import("slow_a", "slow_b")
    assert (a.y, b.x, ran) == (2, 2, ["a", "b"])


def test_what_fails_while_it_loads_says_so_each_time(written):
    ran = written("a", "x = 1 / 0")
    (module,) = _import("slow_a")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            module.x  # noqa: B018
    assert ran == ["a", "a"]


_USES_ALL = """
from impala_mm.runtime import tensorflow_import
tensorflow_import.load()
import tensorflow as tf
import sonnet
from impala_mm.runtime.lazy_imports import _LazyModule
import sys
waiting = [name for name in tensorflow_import.UNUSED if type(sys.modules[name]) is _LazyModule]
assert waiting == list(tensorflow_import.UNUSED), waiting
import tensorflow.compat.v1 as tf1
print(tf1.placeholder, tf.compat.v1.Session)
print(tf.compat.v2.nn.relu, tf.test.TestCase, tf.lite.Interpreter)
print(tf.feature_column.numeric_column, tf.__internal__.test, tf.__internal__.distribute.interim)
"""


def test_all_of_tensorflow_is_there_for_who_asks():
    subprocess.run([sys.executable, "-c", _USES_ALL], check=True)
