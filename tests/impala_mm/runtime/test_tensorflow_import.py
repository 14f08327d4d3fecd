"""The import of TensorFlow: Keras is left out until it is used."""

import subprocess
import sys

import pytest

_CODE = """
import sys
from impala_mm.runtime import lifecycle
lifecycle.import_tensorflow()
import sonnet, tensorflow as tf
print("keras" in sys.modules)
print(tf.keras.layers.Dense.__name__, tf.compat.v1.Session.__name__, tf.lite.Interpreter.__name__)
print("keras" in sys.modules)
"""


@pytest.mark.slow
def test_keras_is_loaded_when_it_is_first_used_and_not_before():
    ran = subprocess.run([sys.executable, "-c", _CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "Dense", "Session", "Interpreter", "True"]
    assert ran.stderr == ""
