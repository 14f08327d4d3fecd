"""The first import of TensorFlow in a process: quiet, without Keras, with fast convolutions.

Each process calls `load` once, after its signal handlers, proxies and thread limits are set.
"""

import importlib
import linecache
import os
import sys
import tempfile

_NOISE = (b"WARNING: All log messages before absl::InitializeLog", b"I0000 ")


def load() -> None:
    """Import TensorFlow without Keras, and print what it writes to stderr except for known noise.

    TensorFlow imports Keras, which nothing here uses: that takes 46 MiB of each actor and a quarter
    of the import's time. `tf.keras` still loads it when it is first used.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # The default is on only for CPUs with AVX-512; without it, others train convolutions at half
    # the speed.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as printed:
        os.dup2(printed.fileno(), 2)
        without_keras = sys.modules.setdefault("keras", None) is None  # type: ignore[arg-type]
        try:
            importlib.import_module("tensorflow")
        finally:
            if without_keras:
                del sys.modules["keras"]
            linecache.clearcache()  # 6 MiB of source code that TensorFlow's decorators have read
            os.dup2(stderr, 2)
            os.close(stderr)
            printed.seek(0)
            for line in printed:
                if not line.startswith(_NOISE):
                    os.write(2, line)
