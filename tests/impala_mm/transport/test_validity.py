"""The limits of what hellos and headers may say."""

import json

import pytest

from impala_mm.transport.connected_actors import EnvironmentNumbers, Refusals
from impala_mm.transport.messages import MAX_ENVIRONMENTS, MessageHeader
from impala_mm.transport.validity import header_mistake, parse_hello

_HELLO = {"actor": 3, "incarnation": 5, "level": "L", "groups": [2, 3], "learners": ["h:1"]}
_HEADER = MessageHeader(nonce=1, run=2, actor=3, incarnation=5)


def test_a_hello_of_right_types_is_returned_as_it_is():
    assert parse_hello(json.dumps(_HELLO).encode()) == (_HELLO, "")
    assert parse_hello(b'{"probe": true}') == ({"probe": True}, "")


@pytest.mark.parametrize(
    ("request_", "mistake"),
    [
        *((request, "is not JSON") for request in (b"", b"[" * 100_000, b"\xff")),
        (b"[]", "is no JSON object"),
        (b"{}", "has no number of the actor"),
        (b'{"probe": true, "failure": {}}', "has the failure {}"),
    ],
)
def test_what_is_no_hello_is_described(request_, mistake):
    asked, found = parse_hello(request_)
    assert asked == {}
    assert found.startswith(f"its hello {mistake}")


_WRONG = {
    "actor": (-1, 2**31, True, 1.5, "1", None, []),
    "incarnation": (-1, 2**62, "x"),
    "groups": ([0], [-1], [1.5], "ab", 3, [True], [10**9]),
    "level": (None, 3, ["L"]),
    "learners": (None, [1], "h:1"),
    "numbered": (3, {}, {"run": "r", "first": -1}, {"run": 1, "first": 1}),
    "shared": (3, None, ["a"], {"a": 1}, {"a": "b", "c": ["d"]}),
    "start": ([1],),
}


@pytest.mark.parametrize("name", _WRONG)
def test_a_field_of_another_type_or_size_is_named(name):
    for value in _WRONG[name]:
        _, mistake = parse_hello(json.dumps(_HELLO | {name: value}).encode())
        assert mistake.startswith(f"its hello has the {name} {value!r}, which must be ")


def test_a_value_that_controls_a_terminal_is_escaped_and_cut():
    _, mistake = parse_hello(json.dumps(_HELLO | {"groups": "\x1b[2J" + 500 * "x"}).encode())
    assert "\x1b" not in mistake
    assert len(mistake) < 250


@pytest.mark.parametrize(
    ("infers", "changes", "mistake"),
    [
        (False, {"environments": 5}, ""),
        (False, {"chunks": -1}, ""),
        (False, {"chunks": -2}, "its number of chunks is -2"),
        (False, {"number": -1}, "its number is -1"),
        (False, {"version": -1}, "its version is -1"),
        (False, {"acting": 2**60}, f"its acting is {2**60}"),
        (False, {"dropped": -3}, "its dropped is -3"),
        (False, {"environments": 6}, "it has 6 environments of 5"),
        (False, {"stream": 0}, "it is a step of group 0, but this learner takes unrolls"),
        (True, {"stream": 1, "environments": 3}, ""),
        (True, {"stream": 1, "environments": 4}, "it has 4 environments of 3"),
        (True, {"stream": 0, "environments": 0}, "it has 0 environments of 2"),
        (True, {"stream": 2, "environments": 3}, "it is a step of group 2 of 2"),
        (True, {}, "it is a step of group -1 of 2"),
    ],
)
def test_numbers_of_a_header_that_cannot_be_are_named(infers, changes, mistake):
    assert header_mistake(_HEADER._replace(**changes), [2, 3], infers) == mistake


def test_without_named_groups_only_the_common_limit_counts():
    for infers, stream in ((False, -1), (True, 0)):
        header = _HEADER._replace(stream=stream, environments=MAX_ENVIRONMENTS)
        assert header_mistake(header, [], infers) == ""
        assert header_mistake(header._replace(environments=MAX_ENVIRONMENTS + 1), [], infers)


def test_the_first_wrong_message_of_each_actor_is_logged():
    said = []
    refusals = Refusals(said.append)
    for actor in (3, 3, 4):
        refusals.log_once((actor,), f"actor {actor}: a message is", "its number is -1")
    assert said == [f"actor {n}: a message is refused: its number is -1" for n in (3, 4)]


def test_environments_get_numbers_as_long_as_they_fit_in_32_bits():
    numbers = EnvironmentNumbers(0, 2)
    for actor in range(10):
        assert numbers.has_room(actor, 2**26)
        numbers.join(actor, [2**26])
    assert numbers.has_room(0, 2**26), "it has its numbers already"
    assert numbers.has_room(10, 2**28)
    assert not numbers.has_room(10, 2**29)
