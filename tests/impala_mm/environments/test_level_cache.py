"""The cache of DeepMind Lab's maps: where files are, processes that share it, and its cleaning."""

import hashlib
import os
import subprocess
import sys

import pytest
from processes import ROOT

from impala_mm.environments import level_cache
from impala_mm.environments.level_cache import LevelCache

KEYS, SIZE = 40, 200_000
# Writes and fetches the same maps as the others; prints how many it fetched.
_SHARING = f"""
import os, sys
from impala_mm.environments.level_cache import LevelCache
folder, number = sys.argv[1], sys.argv[2]
cache, fetched = LevelCache(folder + "/maps"), 0
ours, theirs = (f"{{folder}}/{{number}}.{{use}}" for use in ("ours", "theirs"))
for key in range({KEYS}):
    content = bytes([key]) * {SIZE}
    for _ in range(5):
        if cache.fetch(f"key {{key}}", theirs):
            assert open(theirs, "rb").read() == content
            fetched += 1
        else:
            open(ours, "wb").write(content)
            cache.write(f"key {{key}}", ours)
print(fetched)
"""


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_map_has_the_place_that_seed_rl_gave_it(tmp_path, scheme):
    cache = LevelCache(f"{scheme}{tmp_path}/maps")
    (tmp_path / "made").write_bytes(b"map")
    digest = hashlib.md5(b"key").hexdigest()
    for content in (b"map", b"map of another actor"):
        assert cache.fetch("key", str(tmp_path / "got")) == (content != b"map")
        (tmp_path / "made").write_bytes(content)
        cache.write("key", str(tmp_path / "made"))
        assert (tmp_path / "maps" / digest[:3] / digest[3:]).read_bytes() == b"map"
    assert (tmp_path / "got").read_bytes() == b"map"


def test_processes_share_a_cache_while_they_write_it(tmp_path):
    command = [sys.executable, "-c", _SHARING, str(tmp_path)]
    running = [
        subprocess.Popen([*command, str(i)], cwd=ROOT, stdout=subprocess.PIPE) for i in range(3)
    ]
    printed = [int(each.communicate(timeout=120)[0]) for each in running]
    assert [each.returncode for each in running] == [0, 0, 0]
    assert sum(printed) >= 3 * KEYS * 4
    assert len(list(tmp_path.glob("maps/???/*"))) == KEYS, "no partial file is left"


def test_the_oldest_maps_are_deleted_until_the_rest_fits(tmp_path, capsys):
    cache = LevelCache(str(tmp_path / "maps"))
    (tmp_path / "made").write_bytes(bytes(1000))
    for age, key in enumerate("abcde"):
        cache.write(key, str(tmp_path / "made"))
        os.utime(cache.path(key), (10_000 - age, 10_000 - age))
    level_cache.main([str(tmp_path / "maps"), "2.5e-6"])
    assert "3 maps were deleted, 2 are left" in capsys.readouterr().out
    assert [key for key in "abcde" if os.path.exists(cache.path(key))] == ["a", "b"]
    for wrong in ([], ["-1"], ["nan"]):
        with pytest.raises(SystemExit, match="usage"):
            level_cache.main([str(tmp_path), *wrong])


def test_a_cache_that_cannot_be_written_costs_no_game(tmp_path, capsys):
    (tmp_path / "made").write_bytes(b"map")
    cache = LevelCache(str(tmp_path / "made"))  # a file, and no folder
    cache.write("key", str(tmp_path / "made"))
    assert "cannot be written" in capsys.readouterr().err
    assert not cache.fetch("key", str(tmp_path / "got"))
