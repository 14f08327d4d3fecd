"""The choice of the processor that a process computes on: one of its GPUs, or the CPU's cores.

Call it after TensorFlow is loaded and before TensorFlow computes anything.
"""

import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from impala_mm.config import auto, flags
from impala_mm.runtime import lifecycle
from impala_mm.runtime.safe_files import text_of


def select_device(flag: str, wish: str, number: int) -> str:
    """Choose and start the device that `wish` (auto, cpu or gpu) asks for; return it in words.

    `flag`: the name of the flag that gave `wish`, for the error. `number`: the process's number
    among those of its host, which chooses among several visible GPUs. CUDA_VISIBLE_DEVICES may have
    left this process one GPU of its own, or the same several GPUs to all processes of the host.
    """
    device = find_device(flag, wish, number)
    start_devices()
    return device


def start_devices() -> None:
    """Make TensorFlow start its threads, which it does when it first lists its devices."""
    with lifecycle.threads_named("tf_intra"):
        tf.config.list_logical_devices()


def find_device(flag: str, wish: str, number: int) -> str:
    """Choose the device as `select_device` does, without starting it."""
    gpus = tf.config.list_physical_devices("GPU")
    if wish == "gpu" and not gpus:
        flags.refuse(
            f"--{flag}=gpu: TensorFlow sees no GPU on this machine (`nvidia-smi` lists them, `make "
            f"setup DEVICE=gpu` installs TensorFlow for them, CUDA_VISIBLE_DEVICES may hide them)"
        )
    if wish == "cpu" or not gpus:
        tf.config.set_visible_devices([], "GPU")
        return f"{len(os.sched_getaffinity(0))} CPU cores"
    mine = gpus[number % len(gpus)]
    tf.config.set_visible_devices([mine], "GPU")
    tf.config.experimental.set_memory_growth(mine, True)  # leave the rest to other processes
    return f"{mine.name} of {len(gpus)}"


def training_device() -> str:
    """Return TensorFlow's name of the device that this process trains on, after it was chosen."""
    return "/GPU:0" if tf.config.list_logical_devices("GPU") else "/CPU:0"


def why_not_compiled() -> str:
    """Return in one line what keeps XLA from compiling for this device; empty if it compiles."""
    try:
        tf.function(tf.exp, jit_compile=True)(tf.ones([]))  # exp needs CUDA's library
    except Exception as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return ""


def resolve_precision(wish: str, observation: Any) -> str:
    """Return the number format of a network that reads such observations: `wish`, unless auto.

    The processes of a run may differ in it, since their processors may.
    """
    if wish != "auto":
        return wish
    # For smaller observations the casts cost as much time as bfloat16 saves.
    pictures = any(x.shape.rank == 3 and auto.is_large(x) for x in auto.parts(observation))
    return "bfloat16" if pictures and computes_bfloat16() else "float32"


def computes_bfloat16(cpuinfo: str | Path = "/proc/cpuinfo") -> bool:
    """Return whether the selected device has bfloat16 instructions; others emulate it slowly."""
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        return details.get("compute_capability", (0, 0)) >= (8, 0)  # NVIDIA's A100 and later
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(text_of(cpuinfo).split())
