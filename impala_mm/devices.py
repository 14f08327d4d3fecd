"""Which processor a process computes on: one of the GPUs that it sees, or the CPU's cores.

Called once TensorFlow is loaded, and before it has computed anything.
"""

import os

import tensorflow as tf

from impala_mm import flags, threads


def choose(flag: str, wish: str, number: int) -> str:
    """Takes the device, by `wish` (auto, cpu, gpu), which `--flag` gave; in words.

    CUDA_VISIBLE_DEVICES may have left this process a GPU of its own, or the same several to all of
    a host: then `number`, its place among them, picks.
    """
    said = _choose(flag, wish, number)
    with threads.named("tf_intra"):  # TensorFlow starts its threads when it is first asked
        tf.config.list_logical_devices()
    return said


def _choose(flag: str, wish: str, number: int) -> str:
    gpus = tf.config.list_physical_devices("GPU")
    if wish == "gpu" and not gpus:
        flags.refuse(
            f"--{flag}=gpu: TensorFlow sees no GPU here (`nvidia-smi` lists them, `make setup "
            f"DEVICE=gpu` installs TensorFlow for them, CUDA_VISIBLE_DEVICES may hide them)"
        )
    if wish == "cpu" or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return f"{len(os.sched_getaffinity(0))} CPU cores"
    mine = gpus[number % len(gpus)]
    tf.config.set_visible_devices([mine], "GPU")
    tf.config.experimental.set_memory_growth(mine, True)  # others may use what we do not
    return f"{mine.name} of {len(gpus)}"
