"""Fixtures that several tests need; processes that tests start never outlive them."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from processes import started

from impala_mm.runtime import lifecycle

# The same examples each time: what is accepted once is accepted again. For new ones:
# `pytest --hypothesis-profile=default`.
settings.load_profile("ci")

# The setting of real processes, so that tests compute the same bits as they do.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# Workers and the processes that tests start read what one has compiled: images set this variable.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Nearly every module needs TensorFlow; loaded in this way, it takes a quarter less time.
if "PYTEST_XDIST_WORKER" in os.environ:
    lifecycle.import_tensorflow()

# Under nohup, every process that a test starts would ignore this signal.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# `make test` started these; the makes that tests start are those of a user.
for _name in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS"):
    os.environ.pop(_name, None)

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put complete runs, which take longest, first, and modules with learners that infer last.

    Each such learner leaves a thread that wakes every millisecond: TensorFlow's operation that
    joins calls to a batch never ends it. Slow tests may take an hour: their own deadlines end what
    hangs sooner.
    """
    items.sort(key=lambda item: (item.path.parent != TESTS, "remotely" in vars(item.module)))
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(3600), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Return what gives modules to processes, in this order: one process has all complete runs.

    Two of these at once would wait for each other's processes, which are many.
    """
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - only `pytest -n` loads it

    class Modules(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = super()._split_scope(nodeid)
            return "complete runs" if module.count("/") == 1 else module

    config.option.loadscopereorder = False
    return Modules(config, log)


def pytest_collection_finish() -> None:
    """Take all modules and tests out of the garbage collector's work: none of them is freed."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_outlives_its_test() -> Iterator[None]:
    yield
    while started:
        started.pop().kill()


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the package as the README's part on it installs it: a wheel, no file of the clone."""
    from pages import Package  # noqa: PLC0415 - only tests that use it import it

    return Package(tmp_path_factory.mktemp("package"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """Yield a user of the frontend whose processes all end with the test."""
    from cluster import Cluster  # noqa: PLC0415 - only tests that use it import it

    made = Cluster(tmp_path)
    yield made
    made.end()


@pytest.fixture
def lan() -> Iterator[Any]:
    """Yield simulated hosts to reach over SSH, new ones for each test; booting takes a second."""
    from hosts import Lan, why_not  # noqa: PLC0415 - only tests that use it import it

    if reason := why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    with Lan() as made:
        yield made


@pytest.fixture
def ssh_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield a user of SSH whose servers and connections end with the test."""
    from ssh_user import User  # noqa: PLC0415 - only tests that use it import it

    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = User(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Yield a headless Chromium for all tests of a module."""
    from dashboards import started_chromium  # noqa: PLC0415 - only tests that use it import it

    with started_chromium() as made:
        yield made


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """Yield a browser whose pages must not report an error on the console."""
    from dashboards import Browser  # noqa: PLC0415 - only tests that use it import it

    made = Browser(chromium)
    yield made
    made.close()
    assert made.errors == []
