"""TensorFlow's first import in a process: quiet, and with the CPU's fast convolutions.

Called once by each process, after what must come before it: signals, proxies, threads' limits.
"""

import importlib
import os
import sys
import tempfile

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
            importlib.import_module("tensorflow")
        finally:
            if without_keras:
                del sys.modules["keras"]
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            for line in said:
                if not line.startswith(_NOISE):
                    os.write(2, line)
