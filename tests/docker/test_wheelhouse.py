"""Wheelhouses: missing packages are named, and Horovod is included."""

import hashlib
import os
import subprocess
import sys

import horovod_wheel
import package_sets
import pytest
import wheelhouse
from processes import ROOT
from steps import Problem

_LIST = """\
absl-py==2.5.1 \\
    --hash=sha256:00
dm_tree==0.1.10 \\
    --hash=sha256:00
gym==0.26.2 \\
    --hash=sha256:00
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "wheels"
    made.mkdir()
    (made / f"actor-cpu-{package_sets.platform_tag()}.txt").write_text(_LIST)
    for name in (
        *("absl_py-2.5.1-py3-none-any.whl", "dm_tree-0.1.10-cp311-cp311-manylinux_2_28_x86_64.whl"),
        "gym-0.26.2.tar.gz",
    ):
        (made / name).touch()
    return made


def test_what_a_wheelhouse_lacks_is_named(folder):
    here = package_sets.platform_tag()
    package_sets.check_wheelhouse(folder, "actor", "cpu", here)
    (folder / "gym-0.26.2.tar.gz").unlink()
    (folder / "absl_py-2.5.1-py3-none-any.whl").rename(folder / "absl_py-2.5.0-py3-none-any.whl")
    with pytest.raises(Problem, match=r"wheels lacks absl-py 2\.5\.1, gym 0\.26\.2: `make"):
        package_sets.check_wheelhouse(folder, "actor", "cpu", here)
    with pytest.raises(Problem) as refused:
        package_sets.check_wheelhouse(folder, "learner", "gpu", here)
    assert "`make wheelhouse ROLE=learner WHEELS=gpu` fills it" in str(refused.value)


def test_a_compiled_horovod_travels_in_it_and_makes_a_compiler_needless(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "here"))
    target = horovod_wheel.Target("2.21.0", package_sets.platform_tag(), "openmpi-5.0.11", "none")
    old = target._replace(tensorflow="2.20.0")
    for each in (target, old, target._replace(cuda="13.0-nccl-2.32.3")):
        cached = horovod_wheel.cache_folder() / each.key()
        cached.mkdir(parents=True)
        (cached / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_text("compiled")
        (cached / "sha256").write_text(hashlib.sha256(b"compiled").hexdigest())
    (horovod_wheel.cache_folder() / horovod_wheel.SDIST).write_text("source")
    wheelhouse._add_horovod(folder)
    there = {path.name for path in (folder / "horovod").iterdir()}
    assert len(there) == 3
    assert horovod_wheel.SDIST in there, "for hosts that compile it"
    assert old.key() not in there

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    cache = horovod_wheel.cache_folder()
    cache.mkdir(parents=True)
    horovod_wheel.take_from(folder, cache, target)
    wheel, fresh = horovod_wheel.ensure(target, cache, lambda *_: pytest.fail("it was compiled"))
    assert wheel.read_text() == "compiled"
    assert not fresh


def test_without_a_package_index_the_remedy_is_named(tmp_path):
    """A namespace without a network; horovod's source is not in the cache either."""
    isolated = ("unshare", "--net", "--map-root-user")
    if subprocess.run([*isolated, "true"], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are unavailable")
    env = os.environ | {
        **{"XDG_CACHE_HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "uv")},
        **{"PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "0"},
        **{"UV_HTTP_RETRIES": "0", "HOME": str(tmp_path)},
    }
    mirror = "name a mirror (`pip config set global.index-url ADDRESS`)"
    for program, remedy in (
        ([ROOT / "docker" / "wheelhouse.py", tmp_path / "new"], "run it on a machine that can"),
        (
            [ROOT / "docker" / "horovod_wheel.py"],
            "run `make wheelhouse ROLE=learner` on a machine that can, copy the folder to this",
        ),
    ):
        ran = subprocess.run(
            [*isolated, sys.executable, *map(str, program)],
            env=env, capture_output=True, text=True, check=False, timeout=100,
        )  # fmt: skip
        last = ran.stderr.splitlines()[-1]
        assert ran.returncode == 1
        assert mirror in last
        assert remedy in last
