"""The cache of Horovod's wheels: one for each target, and never used if it is damaged.

Builds are stubs here; the real build and its all-reduce check run in set-up, before these tests.
"""

import sys
from pathlib import Path

import horovod_wheel
import pytest
import steps
from processes import needs_horovod, run

TARGET = horovod_wheel.Target("2.21.0", "cp311-x86_64", "openmpi-5.0.11", "none")


class StubBuild:
    """A build that writes a small wheel and counts its calls."""

    def __init__(self):
        self.count = 0

    def __call__(self, work, log):
        assert " " not in str(work), "Horovod cannot be built there"
        self.count += 1
        wheel = work / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
        wheel.write_bytes(b"wheel" * 100)
        return wheel


@pytest.fixture
def build():
    return StubBuild()


def test_a_whole_wheel_is_built_once_and_then_taken_from_the_cache(tmp_path, build):
    folder = tmp_path / "with a space"
    first, fresh = horovod_wheel.ensure(TARGET, folder, build)
    again, fresh_again = horovod_wheel.ensure(TARGET, folder, build)
    assert (fresh, fresh_again, build.count) == (True, False, 1)
    assert first == again
    assert first.read_bytes() == b"wheel" * 100


def test_a_wheel_with_one_byte_changed_is_built_again(tmp_path, build, capsys):
    wheel, _ = horovod_wheel.ensure(TARGET, tmp_path, build)
    content = bytearray(wheel.read_bytes())
    content[250] ^= 1
    wheel.write_bytes(content)
    wheel, fresh = horovod_wheel.ensure(TARGET, tmp_path, build)
    assert (fresh, build.count) == (True, 2)
    assert wheel.read_bytes() == b"wheel" * 100
    assert f"{wheel} is damaged" in capsys.readouterr().out


def test_another_version_of_what_it_is_built_against_is_another_wheel(tmp_path, build, monkeypatch):
    old, _ = horovod_wheel.ensure(TARGET, tmp_path, build)
    wheels = {old}
    for field in TARGET._fields:
        target = TARGET._replace(**{field: "another"})
        new, fresh = horovod_wheel.ensure(target, tmp_path, build)
        assert fresh
        wheels.add(new)
    assert len(wheels) == 5
    assert horovod_wheel.ensure(TARGET, tmp_path, build) == (old, False)
    monkeypatch.setattr(horovod_wheel, "PATCHES", [("setup.py", "a", "b")])
    assert horovod_wheel.ensure(TARGET, tmp_path, build)[1], "the patch is part of it"


def test_a_build_that_failed_or_was_killed_leaves_nothing_that_is_taken_for_a_wheel(
    tmp_path, build
):
    def fails(work, log):
        build(work, log)
        raise steps.Problem("compiler error")

    with pytest.raises(steps.Problem):
        horovod_wheel.ensure(TARGET, tmp_path, fails)
    assert not list(tmp_path.rglob("*.whl"))
    # A wheel without a checksum, as if the build was killed while it copied into the cache.
    folder = tmp_path / TARGET.key()
    folder.mkdir()
    (folder / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl").write_bytes(b"wh")
    assert horovod_wheel.ensure(TARGET, tmp_path, build)[1]


@needs_horovod
def test_the_installed_horovod_finds_its_mpi_without_help(tmp_path):
    """It uses the libmpi of the environment that it is installed to, not of the build's."""
    env = {"LD_LIBRARY_PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = (
        "import horovod.tensorflow as hvd; assert hvd.mpi_built() and hvd.gloo_built(); "
        "print([l.split(maxsplit=5)[5] for l in open('/proc/self/maps') if 'libmpi.so' in l][0])"
    )
    code, printed = run(sys.executable, "-c", program, cwd=tmp_path, **env)
    assert code == 0, printed
    prefix = Path(sys.prefix).resolve()
    if (prefix / "lib" / "libmpi.so").exists():
        assert printed.strip().splitlines()[-1].startswith(str(prefix))
