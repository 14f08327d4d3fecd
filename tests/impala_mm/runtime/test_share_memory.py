"""A process whose threads share their memory: one arena of malloc."""

import os
import platform
import subprocess
import sys

import pytest

_SET = {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "LD_PRELOAD"}
# Threads that allocate at the same time get an arena each, unless that is limited.
_ARENAS = """
import ctypes, re, sys, threading
from impala_mm.runtime import lifecycle
{before}
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.fopen.restype = ctypes.c_void_p, ctypes.c_void_p
together = threading.Barrier(4)
def allocate():
    together.wait()
    for _ in range(100):
        libc.malloc(ctypes.c_size_t(50_000))
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
path = sys.argv[1]
told = ctypes.c_void_p(libc.fopen(path.encode(), b"w"))
libc.malloc_info(0, told)
libc.fclose(told)
print(len(re.findall("<heap nr=", open(path).read())))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another libc has no such arenas")
@pytest.mark.parametrize(
    ("before", "one"), [("lifecycle.limit_threads_and_memory()", True), ("", False)]
)
def test_threads_share_one_arena_if_it_is_asked_for(before, one, tmp_path):
    code = _ARENAS.format(before=before)
    command = [sys.executable, "-c", code, str(tmp_path / "arenas")]
    env = {name: value for name, value in os.environ.items() if name not in _SET}
    assert (int(subprocess.check_output(command, env=env)) == 1) is one
