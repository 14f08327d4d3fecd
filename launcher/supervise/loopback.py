"""Keeps the mpirun of learners that are all on one machine off the network.

Open MPI's mpirun listens on all interfaces, and has no option against it, for its own processes on
other hosts; so do its ranks, for each other. Where all ranks are on one machine, nobody needs that:
the ranks use shared memory, and a small library makes mpirun listen at the loopback interface. A C
compiler makes that library at each start, which takes a quarter of a second.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from launcher.supervise import mpirun
from launcher.supervise.task import Task

# Open MPI takes these where --mpirun_args says nothing else. NCCL carries gradients between GPUs.
_VARIABLES = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "^tcp,ofi,usnic",  # what remains is shared memory: sm, or vader in Open MPI 4
    "NCCL_SOCKET_IFNAME": "lo",
}
# Ranks have the library in their environment, too, and may listen wherever --bind_address says.
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int descriptor, const struct sockaddr *address, socklen_t size) {
  int (*original)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "bind");
  struct sockaddr_in6 own = {0};
  struct sockaddr_in *v4 = (struct sockaddr_in *)&own;
  const char *name = program_invocation_short_name;
  int starts_ranks = !strncmp(name, "prte", 4) || !strncmp(name, "orte", 4) ||
                     !strcmp(name, "mpirun");
  if (address && size <= sizeof own && starts_ranks) {
    memcpy(&own, address, size);
    if (own.sin6_family == AF_INET && v4->sin_addr.s_addr == htonl(INADDR_ANY))
      v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (own.sin6_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&own.sin6_addr))
      own.sin6_addr = in6addr_loopback;
    address = (struct sockaddr *)&own;
  }
  return original(descriptor, address, size);
}
"""
_COMPILERS = ("cc", "gcc", "clang", "g++")
_COMPILE_SECONDS = 60.0


def variables(task: Task, folder: Path) -> tuple[dict[str, str], str]:
    """Return the variables that keep the mpirun of a task off the network, and a note for its log.

    There are none unless the task is an mpirun that starts ranks only on this machine. The library
    is written to `folder`.
    """
    if not mpirun.stays_here(task.command):
        return {}, ""
    found = {name: value for name, value in _VARIABLES.items() if name not in task.environment}
    library, why = _make_library(folder, task.environment)
    if library is None:
        return found, f"mpirun, not the learners, listens on all network interfaces, since {why}"
    others = task.environment.get("LD_PRELOAD", "")
    return found | {"LD_PRELOAD": f"{library}:{others}" if others else str(library)}, ""


def _make_library(folder: Path, environment: Mapping[str, str]) -> tuple[Path | None, str]:
    """Compile the library; return its path, and why there is none."""
    path = environment.get("PATH", os.defpath)
    compiler = next(filter(None, (shutil.which(each, path=path) for each in _COMPILERS)), None)
    if compiler is None:
        return None, "there is no C compiler (cc, gcc, clang or g++)"
    library = folder / "loopback.so"
    if any(letter in str(library) for letter in ": "):  # they separate the entries of LD_PRELOAD
        return None, f"the path {library} contains a colon or a space"
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library), "-ldl"]
    try:
        subprocess.run(
            command,
            input=_SOURCE,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=True,
            timeout=_COMPILE_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        return None, f"{compiler} failed: {error.stderr.strip().splitlines()[-1:]}"
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{compiler} failed: {error}"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:  # such as a folder whose programs may not be executed
        return None, f"the library cannot be loaded: {error}"
    return library, ""
