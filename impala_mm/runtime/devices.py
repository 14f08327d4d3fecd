"""Which processor a process computes on: one of the GPUs that it sees, or the CPU's cores.

Called once TensorFlow is loaded, and before it has computed anything.
"""

import os
from pathlib import Path

import tensorflow as tf

from impala_mm.config import auto, flags
from impala_mm.runtime import thread_names


def select_device(flag: str, wish: str, number: int) -> str:
    """Takes the device, by `wish` (auto, cpu, gpu), which `--flag` gave; in words.

    CUDA_VISIBLE_DEVICES may have left this process a GPU of its own, or the same several to all of
    a host: then `number`, its place among them, picks.
    """
    said = find_device(flag, wish, number)
    start_devices()
    return said


def start_devices() -> None:
    """TensorFlow starts its threads when it is first asked for devices."""
    with thread_names.threads_named("tf_intra"):
        tf.config.list_logical_devices()


def find_device(flag: str, wish: str, number: int) -> str:
    """As `select_device` does, and starts nothing yet."""
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


def training_device() -> str:
    """TensorFlow's name of the device that this process trains on, once one was chosen."""
    return "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"


def why_not_compiled() -> str:
    """What keeps XLA from compiling for this device, in a line; empty where it does."""
    try:
        tf.function(tf.exp, jit_compile=True)(tf.ones([]))  # CUDA's library has exp, if it is there
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return ""


def resolve_precision(wish: str, observation: tf.TensorSpec) -> str:
    """What a network computes in here that reads such observations: `wish`, unless that is auto.

    It is not compared: a run's processors may differ.
    """
    if wish != "auto":
        return wish
    # For what is smaller, casts cost what it saves.
    pictures = observation.shape.rank == 3 and auto.is_large(observation)
    return "bfloat16" if pictures and computes_bfloat16() else "float32"


def computes_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the selected device has instructions for it; elsewhere it is much the slower way."""
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        return details.get("compute_capability", (0, 0)) >= (8, 0)  # NVIDIA's A100 and later
    known = cpuinfo.read_text() if cpuinfo.exists() else ""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(known.split())
