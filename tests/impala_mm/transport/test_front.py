"""Actors that reach a learner by its front, by TLS, or on its own socket."""

import random
import re
import threading
from pathlib import Path

import pytest
from fronted import ME, TOKEN, Learner

from impala_mm.data.episodes import to_rows
from impala_mm.runtime.ports import split_address
from impala_mm.transport import route
from impala_mm.transport.client import Refused
from impala_mm.transport.messages import Reply
from impala_mm.transport.tls import Credentials

NO_EPISODES = to_rows([])


@pytest.fixture(scope="module")
def shared():
    with Learner() as made:
        yield made


@pytest.mark.parametrize("from_outside", [False, True])
def test_large_messages_arrive_whole_by_either_way(shared, from_outside):
    client = shared.join(from_outside)
    parameters = random.Random(1).randbytes(9_000_000)
    shared.server.publish(7, lambda: parameters)
    assert client.get_parameters() == (7, parameters)
    contents = [random.Random(n).randbytes(2_000_000) for n in range(3)]
    header = client.header(1, 1)._replace(number=int(from_outside))
    assert client.enqueue(header, contents, NO_EPISODES) == Reply.ACCEPTED
    assert list(shared.server.queue.dequeue_many(3)[0].numpy()) == contents


def test_an_actor_of_this_machine_takes_the_socket_by_any_name_of_the_address(shared):
    port = split_address(shared.address)[1]
    credentials = Credentials.parse(TOKEN)
    for host in ("127.0.0.1", "localhost"):
        target = route.find(f"{host}:{port}", credentials, 5, from_outside=False)
        assert re.fullmatch(rf"unix:/tmp/impala_mm-\d+/\d+-127.0.0.1-{port}", target)
    outside = route.find(shared.address, credentials, 5, from_outside=True)
    assert re.fullmatch(r"unix:/tmp/impala_mm-\d+/[0-9a-f]{16}", outside), "its own relay"


def test_a_learner_with_transport_security_tls_offers_no_socket():
    with Learner(offers_socket=False) as learner:
        assert route.find_learner(learner.address) is None
        assert learner.join(from_outside=False).run


def test_many_calls_at_once_go_through(shared):
    def call():
        for number in range(10):
            assert client.hello({"probe": True})["nonce"], number

    client = shared.join()
    callers = [threading.Thread(target=call) for _ in range(16)]
    for each in callers:
        each.start()
    for each in callers:
        each.join(30)
        assert not each.is_alive()


def test_an_environments_proxy_has_no_say(shared, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    assert shared.join().hello({"probe": True})["nonce"]


def test_the_front_knows_neither_tensorflow_nor_the_actors_key(shared):
    maps = Path(f"/proc/{shared.front.process.pid}/maps").read_text()
    assert "_ssl" in maps
    assert "tensorflow" not in maps
    assert Credentials.parse(TOKEN).actor not in shared.front._start_message


def test_what_an_actor_says_of_itself_makes_no_other_line_in_the_learners_log(shared):
    evil = "x\x1b]0;owned\x07\n[learner] checkpoint saved" + 200 * "x"
    client = shared.join()
    before = len(shared.said)
    client.hello(ME | {"actor": 2, "incarnation": 1, "level": "L", "host": evil})
    with pytest.raises(Refused):
        client.hello(ME | {"actor": 3, "incarnation": 1, "host": "h", "shared": {"network": evil}})
    joined, refused = shared.said[before:]
    assert re.fullmatch(
        r"actor 2 on x\\x1b]0;owned\\x07\\n\[learner] chec[a-z ]*\.\.\. joined", joined
    )
    assert len(joined) < 150
    assert refused.startswith("actor 3 on h refused: this actor's network ")
    assert r"is x\x1b]0;owned\x07\n[learner] checkpoint savedxxx" in refused
