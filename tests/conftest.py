"""What several tests need: the project's folder, and processes of it that never outlive a test."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import started

# As processes have it: what is computed here is then, bit for bit, what is computed there.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


@pytest.fixture(autouse=True)
def _nothing_outlives_its_test() -> Iterator[None]:
    yield
    while started:
        started.pop().kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    """A user of the frontend, whose processes all end with the test."""
    from cluster import Cluster  # noqa: PLC0415 - it needs what is defined here

    made = Cluster(tmp_path)
    yield made
    made.end()


@pytest.fixture
def lan() -> Iterator[Any]:
    """Hosts to reach over SSH, fresh for each test: that takes a second."""
    from hosts import Lan, why_not  # noqa: PLC0415 - it needs what is defined here

    if reason := why_not():
        pytest.skip(f"no hosts to reach over SSH: {reason}")
    with Lan() as made:
        yield made


@pytest.fixture
def ssh_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A user of SSH, whose servers and connections end with the test."""
    from ssh_user import User  # noqa: PLC0415 - it needs what is defined here

    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made = User(tmp_path)
    yield made
    made.end()
