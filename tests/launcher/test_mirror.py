"""Copies of what hosts say: several may keep the same ones, and none of them spoils it."""

import base64

import pytest
from supervising import until

from launcher.host.registry import Run
from launcher.hosts.mirror import Mirror


class Hosts:
    """That are asked to say more."""

    def __init__(self):
        self.asked = []

    def call(self, place, op, **said):
        self.asked.append((place, op, said))


@pytest.fixture
def copied(tmp_path):
    hosts, copy = Hosts(), tmp_path / "learners.log"
    mirror = Mirror(Run("impala", tmp_path), hosts, {"there": {"/log": copy}})

    def tell(offset, data):
        mirror.data("there", "/log", offset, base64.b64encode(data).decode())

    return hosts, copy, tell


def test_a_log_that_was_begun_anew_is_kept_as_the_one_before(copied):
    _, copy, tell = copied
    tell(0, b"first ")
    tell(6, b"second")
    tell(0, b"new")
    assert copy.read_bytes() == b"new"
    assert copy.with_name("learners.log.1").read_bytes() == b"first second"


def test_what_another_has_begun_anew_already_is_not_begun_again(copied):
    _, copy, tell = copied
    before = copy.with_name("learners.log.1")
    before.write_bytes(b"first second")
    copy.write_bytes(b"ne")
    tell(0, b"new")
    assert copy.read_bytes() == b"new"
    assert before.read_bytes() == b"first second"
    copy.write_bytes(b"new and more")  # another was quicker
    tell(3, b" an")
    assert copy.read_bytes() == b"new and more"


def test_a_copy_that_was_replaced_is_asked_for_from_its_end(copied):
    hosts, copy, tell = copied
    copy.write_bytes(b"brought whole")
    tell(100, b"later")
    tell(105, b"still later")
    until(lambda: hosts.asked)
    assert hosts.asked[0] == ("there", "follow", {"start": "", "files": {"/log": 13}})
    assert copy.read_bytes() == b"brought whole"
