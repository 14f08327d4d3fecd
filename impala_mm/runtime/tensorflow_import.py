"""TensorFlow's first import in a process: quiet, and with the CPU's fast convolutions.

Called once by each process, after what must come before it: signals, proxies, threads' limits.
"""

import importlib
import linecache
import os
import sys
import tempfile
from typing import Any

from impala_mm.runtime.lazy_imports import lazily_imported

# What it imports for others: a tenth of its memory, a seventh of its time. All else of TensorFlow
# gets by without, and whoever asks for it gets it.
UNUSED = (
    "tensorflow._api.v2.compat.v1",
    "tensorflow._api.v2.compat.v2",
    "tensorflow.compat.v1",  # Sonnet's, for one of its recurrent cores
    "tensorflow._api.v2.lite",
    "tensorflow._api.v2.test",
    "tensorflow._api.v2.__internal__.test",
    "tensorflow._api.v2.__internal__.distribute",
    "tensorflow._api.v2.feature_column",
    "tensorflow._api.v2.__internal__.feature_column",
)
_NOISE = (b"WARNING: All log messages before absl::InitializeLog", b"I0000 ")


def load() -> None:
    """Imports it. What it says at its start is kept back, but for what is not known as noise.

    Keras, which it imports though nothing here needs it, is left out: a quarter of the time.
    (`tf.keras` still loads it when it is first used.)
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # On by itself only where the CPU has AVX-512: on others convolutions train half as fast.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        without_keras = sys.modules.setdefault("keras", None) is None  # type: ignore[arg-type]
        try:
            with lazily_imported(UNUSED):
                tensorflow: Any = importlib.import_module("tensorflow")
                importlib.import_module("tensorflow.compat.v1")
                lite = tensorflow.lite  # has the name of a package that would later take its place
                importlib.import_module("tensorflow.lite")
                tensorflow.lite = lite
        finally:
            if without_keras:
                del sys.modules["keras"]
            linecache.clearcache()  # 7 MB of source that decorators have read
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            for line in said:
                if not line.startswith(_NOISE):
                    os.write(2, line)
