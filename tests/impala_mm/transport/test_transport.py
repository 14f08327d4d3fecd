"""The data plane: each unroll is trained once, parameters stay intact, strangers are refused."""

import contextlib
import os
import re
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from deadlines import within
from processes import free_port
from supervising import until

from impala_mm.data.compression import compress_lz4
from impala_mm.data.episodes import to_rows
from impala_mm.runtime.machine import Use
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport import connected_actors, delivery, messages
from impala_mm.transport import rounds as rounds_module
from impala_mm.transport.client import Client, Delivery, OtherRun, Refused, Unreachable
from impala_mm.transport.messages import MessageHeader, Reply
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server

TOKEN = "a secret"
SHARED = {"network": "n", "layout of parameters": "a"}
IDENTITY = {"run_id": "run", "level_name": "L", "shared": SHARED}
NO_EPISODES = to_rows([])


def _send_chunks(client, header, contents):
    delivery = SimpleNamespace(_client=client, _header=header, _contents=contents)
    Delivery._send_chunks(delivery)


@pytest.fixture
def serve():
    servers = []

    def _serve(capacity=8, events=None, changes=None, **options):
        address = f"127.0.0.1:{free_port()}"
        on_event = (lambda event: None) if events is None else events.append
        own = (HeldAddress(address), TOKEN, IDENTITY | (changes or {}), capacity, on_event)
        server = Server(address, *own, **options)
        servers.append(server)
        return server, address

    yield _serve
    for server in servers:
        server.close()


def _join(address, actor=0, incarnation=1, timeout=10.0, token=TOKEN, **changes):
    client = Client(address, token, timeout)
    me = {"protocol": messages.PROTOCOL, "actor": actor, "incarnation": incarnation}
    me |= {"host": "here", "level": "L"}
    client.hello({**IDENTITY, **me, **changes})
    return client


def _header(client, number, actor=0, incarnation=1):
    times = {"acting": 250_000, "stepping": 500_000, "waiting": 0, "playing": 1_000_000}
    return client.header(actor, incarnation)._replace(number=number, **times, version=7)


# -- unrolls


def test_unrolls_arrive_whole_with_their_version_and_episodes(serve):
    server, address = serve()
    client = _join(address, actor=5)
    episodes = np.array([[2, 1, 21.5, 300, 0, 0.5]], np.float32)
    header = _header(client, 0, actor=5)
    assert client.enqueue(header, [b"one", b"two\0"], episodes) == Reply.ACCEPTED
    contents, versions = server.queue.dequeue_many(2)
    assert list(contents.numpy()) == [b"one", b"two\0"]
    assert list(versions.numpy()) == [7, 7]
    (arrival,) = server.actors.take_reports()
    assert (arrival.actor, arrival.level) == (5, "L")
    idle = {"waiting": 0.0, "policy_wait": 0.0}
    assert arrival.times == {"acting": 0.25, "stepping": 0.5, "playing": 1.0} | idle
    np.testing.assert_array_equal(arrival.episodes, episodes)
    assert server.actors.take_reports() == []


def test_an_unroll_far_above_the_message_limit_arrives_whole(serve):
    """An unroll of 200 steps of 210x160x3 has 20 MB; gRPC's limit is 4 MB."""
    large = os.urandom(15_000_000) + bytes(5_000_000)
    server, address = serve(capacity=2, unroll_bytes=len(large))
    client, sent = _join(address), [large, compress_lz4(large)]
    assert messages.MAX_CONTENT < len(sent[1]) < len(large)
    assert client.enqueue(_header(client, 0), sent, NO_EPISODES) == Reply.ACCEPTED
    contents, _ = server.queue.dequeue_many(2)
    assert all(content == large for content in contents.numpy())
    assert len(server._receiver.chunks._messages) == 0


def test_chunks_whose_sender_vanished_are_freed(serve, monkeypatch):
    server, address = serve()
    client = _join(address)
    _send_chunks(client, _header(client, 0), [b"the rest never comes"])
    assert len(server._receiver.chunks._messages) == 1
    monkeypatch.setattr(delivery, "_KEPT_SECONDS", 0.0)
    _send_chunks(client, _header(client, 1), [b"another"])
    assert server._receiver.chunks.count(_header(client, 0).message_key) == 0
    assert server._receiver.chunks.count(_header(client, 1).message_key) == 1


def test_chunks_of_another_learners_process_or_a_displaced_actor_are_not_kept(serve):
    server, address = serve()
    client = _join(address)
    for header in (
        _header(client, 0)._replace(nonce=client.nonce + 1),
        _header(client, 0)._replace(run=client.run + 1),
        _header(client, 0, incarnation=2),
    ):
        _send_chunks(client, header, [b"lost"])
    assert len(server._receiver.chunks._messages) == 0


def test_chunks_that_cannot_be_are_refused_and_unfinished_messages_are_few(serve):
    server, address = serve(unroll_bytes=4 << 20)
    client = _join(address)

    def send(number, *position, content=b"x"):
        header = tf.constant(list(_header(client, number)), tf.int64)
        [reply] = client._call(
            "chunk", header, tf.constant(position, tf.int64), content, result=[tf.int64]
        )
        return Reply(int(reply))

    for position in ((-1, 0), (0, -1), (2**62, 0), (0, 2)):
        assert send(0, *position) == Reply.INVALID, position
    assert send(0, 0, 0, content=bytes(messages.MAX_CONTENT + 1)) == Reply.INVALID
    assert len(server._receiver.chunks._messages) == 0
    for number in range(10):
        assert send(number, 1, 1) == Reply.ACCEPTED
    assert len(server._receiver.chunks._messages) == delivery._MOST_MESSAGES
    assert server._receiver.chunks.count(_header(client, 9).message_key) == 1


def test_an_actor_of_a_level_that_the_learner_does_not_have_is_refused(serve):
    server, address = serve(changes={"level_name": "L,M"})
    _join(address, level="M", level_name="L,M")
    with pytest.raises(Refused, match="the level 'N', the learner's are L, M"):
        _join(address, actor=1, level="N", level_name="L,M")
    assert list(server.actors.heard) == [0]


def test_an_actor_with_a_message_that_cannot_be_is_refused_and_the_log_says_why(serve):
    events = []
    _, address = serve(events=events)
    client = _join(address)
    header = _header(client, 0)._replace(version=-1)
    for _ in range(2):
        with pytest.raises(Refused, match="cannot be right"):
            client.enqueue(header, [b"x"], NO_EPISODES)
    assert events[1:] == ["actor 0: a message is refused: its version is -1"]


def test_episodes_with_nan_are_left_out_of_a_report(serve):
    server, address = serve()
    client = _join(address)
    good = [0, 1, 2, 3, -1, 0.5]
    wrong = ((2, np.nan), (3, np.inf), (0, -1), (0, 1e30), (5, np.nan))
    bad = [[*good[:i], value, *good[i + 1 :]] for i, value in wrong]
    episodes = np.array([good, *bad], np.float32)
    client.enqueue(_header(client, 0), [b"x"], episodes)
    (report,) = server.actors.take_reports()
    np.testing.assert_array_equal(report.episodes, [good])


def test_what_actors_use_is_added_up_by_host_while_they_are_connected(serve):
    learner, address = serve()
    for actor, host in enumerate(["a", "b", "a"]):
        client = _join(address, actor, host_name=host)
        use = Use(0.5 + actor, 100.0 * (actor + 1))
        header = _header(client, 0, actor)._replace(**use.in_header())
        client.enqueue(header, [b"x"], NO_EPISODES)
    assert learner.actors.use_by_host() == {"a": Use(3.0, 400.0), "b": Use(1.5, 200.0)}
    assert learner.actors.on_other_hosts() == 3
    learner.actors.leave(2)
    assert learner.actors.use_by_host() == {"a": Use(0.5, 100.0), "b": Use(1.5, 200.0)}


def test_an_unroll_in_which_a_mistake_is_found_is_dropped_and_counted(serve):
    events = []
    options = {"find_mistake": lambda unroll: "it lies" * (unroll == b"bad")}
    server, address = serve(events=events, unroll_bytes=3, **options)
    client = _join(address)
    client.enqueue(_header(client, 0), [b"bad"], NO_EPISODES)
    assert not server.has_received
    assert server.mistakes == {0: "it lies"}
    client.enqueue(_header(client, 1), [b"bad", b"one"], NO_EPISODES)
    contents, _ = server.queue.dequeue_many(1)
    assert list(contents.numpy()) == [b"one"]
    assert server.has_received
    assert server.dropped == 2
    server.actors.leave(0)
    assert server.mistakes == {}, "only those of connected actors"
    assert ["actor 0: dropped 1 unrolls: in one, it lies" in event for event in events[1:]] == [
        True
    ], "once"


def test_unrolls_arrive_as_they_were_before_some_were_compressed(serve):
    server, address = serve(unroll_bytes=10_000)
    client = _join(address)
    zeros, noise = bytes(10_000), os.urandom(10_000)
    packed = compress_lz4(zeros)
    assert len(packed) < 100
    for sequence, sent in enumerate([[packed, noise, compress_lz4(noise)], [noise], [packed]]):
        assert client.enqueue(_header(client, sequence), sent, NO_EPISODES) == Reply.ACCEPTED
    contents, versions = server.queue.dequeue_many(5)
    assert contents.numpy().tolist() == [zeros, noise, noise, noise, zeros]
    assert versions.numpy().tolist() == [7] * 5
    assert server.dropped == 0


def test_what_cannot_be_an_unroll_is_dropped_alone_and_said(serve):
    events, good = [], bytes(10_000)
    server, address = serve(events=events, unroll_bytes=10_000)
    kinds = [b"", b"x" * 50, compress_lz4(bytes(10_001)), compress_lz4(bytes(10**7)), bytes(10_001)]
    for actor, rubbish in enumerate(kinds):
        client = _join(address, actor=actor)
        for number, sent in enumerate([[rubbish, compress_lz4(good)], [rubbish], [good]]):
            header = _header(client, number, actor=actor)
            assert client.enqueue(header, sent, NO_EPISODES) == Reply.ACCEPTED
        assert server.queue.dequeue_many(2)[0].numpy().tolist() == [good, good]
        assert int(server.queue.size()) == 0
        assert server.dropped == 2 * (actor + 1)
        said = [event.startswith(f"actor {actor}: dropped 1 unrolls") for event in events[-3:]]
        assert said == [False, True, True]


def test_unrolls_at_which_the_learner_fails_are_delivered_by_the_next_call(serve):
    failing = [True]

    def find_mistake(unroll):
        if failing and failing.pop():
            raise RuntimeError("out of memory")
        return ""

    server, address = serve(unroll_bytes=4, find_mistake=find_mistake)
    client = _join(address)
    delivery = Delivery(client, _header(client, 0), [b"once"], NO_EPISODES)
    with pytest.raises(Unreachable, match="out of memory") as caught:
        delivery.wait()
    assert not caught.value.late
    assert delivery.wait() == Reply.ACCEPTED, "no earlier call is still running"
    assert delivery.wait() == Reply.STALE
    assert server.queue.dequeue_many(1)[0].numpy().tolist() == [b"once"]


def test_a_full_queue_holds_its_senders_back_and_no_other_call(serve):
    server, address = serve(capacity=2)
    client = _join(address, timeout=30)
    sent = []

    def send():
        for sequence in range(4):
            client.enqueue(_header(client, sequence), [b"x"], NO_EPISODES)
            sent.append(sequence)

    sender = threading.Thread(target=send)
    sender.start()
    other = _join(address, actor=1)
    until(lambda: sent == [0, 1])
    time.sleep(0.5)
    assert sent == [0, 1]
    with within(1):
        other.hello({"probe": True})
    server.queue.dequeue_many(2)
    sender.join(timeout=60)
    assert sent == [0, 1, 2, 3]


def test_calls_past_their_deadline_are_trained_exactly_once(serve):
    """The queue stalls past the deadline 40 times; the sender repeats until it is answered."""
    server, address = serve(capacity=1)
    client = _join(address)
    total, late = 41, 0

    def send():
        nonlocal late
        for sequence in range(total):
            while True:
                message = (_header(client, sequence), [b"%d" % sequence], NO_EPISODES)
                try:
                    client.enqueue(*message, timeout=0.05)
                except Unreachable:
                    late += 1
                else:
                    break

    sender = threading.Thread(target=send)
    sender.start()
    trained = []
    for place in range(total):
        # The queue is full, and the sender of the next unroll waits until its deadline has passed.
        before = late
        until(lambda: late > before or place == total - 1)  # noqa: B023 - it is called here
        trained.append(int(server.queue.dequeue()[0].numpy()))
    sender.join(timeout=60)
    assert late >= 40
    assert sorted(trained) == list(range(total))
    assert int(server.queue.size()) == 0


def test_what_an_actor_dropped_elsewhere_is_counted_where_it_says_so(serve):
    server, address = serve()
    client = _join(address)
    client.enqueue(_header(client, 0)._replace(dropped=16), [b"x"], NO_EPISODES)
    assert server.dropped == 16


def test_a_call_again_asks_without_the_content_and_sends_it_only_where_it_is_not_there(serve):
    server, address = serve()
    client = _join(address)
    sent = []
    start = client.start

    def counted(function, arguments, *options):
        sent.append(int(tf.size(arguments[1])))
        return start(function, arguments, *options)

    client.start = counted
    assert client.enqueue(_header(client, 0), [b"x"], NO_EPISODES, is_repeat=True) == Reply.ACCEPTED
    assert sent == [0, 1]
    assert client.enqueue(_header(client, 0), [b"x"], NO_EPISODES, is_repeat=True) == Reply.STALE
    assert sent == [0, 1, 0]
    assert int(server.queue.size()) == 1


# -- parameters


@pytest.mark.slow
def test_parameters_are_never_torn(serve):
    """A 50 MB vector whose elements all equal its version, 1,000 updates, 8 clients, 20 pulls each.

    A reader would see two versions in one vector if pieces of different ones were mixed.
    """
    server, address = serve()
    size = 12_500_000 // 4 * 4
    vectors = [np.full(size, v, np.float32).tobytes() for v in range(8)]  # made once: 50 MB each
    server.publish(0, lambda: vectors[0])
    pulled, mixed, done = [0] * 8, [], threading.Event()

    def pull(me):
        client = _join(address, actor=me, timeout=60)
        while not done.is_set() or pulled[me] < 20:
            version, vector = client.get_parameters()
            numbers = np.frombuffer(vector, np.float32)
            if len(numbers) != size or (numbers != version % 8).any():
                mixed.append(version)
            pulled[me] += 1

    readers = [threading.Thread(target=pull, args=(i,)) for i in range(8)]
    for reader in readers:
        reader.start()
    for version in range(1, 1001):
        server.publish(version, lambda version=version: vectors[version % 8])
        time.sleep(0.005)
    done.set()
    for reader in readers:
        reader.join(timeout=100)
    assert not mixed
    assert min(pulled) >= 20
    assert len(server._parameters._versions) <= 9, "old versions are let go"


def test_a_pull_brings_nothing_before_there_are_parameters(serve):
    server, address = serve()
    client = _join(address)
    assert client.get_parameters() is None
    server.publish(3, lambda: b"three")
    assert client.get_parameters() == (3, b"three")


# -- who may talk


def test_every_function_refuses_a_caller_without_the_token(serve):
    events = []
    server, address = serve(events=events)
    server.publish(0, lambda: b"weights")
    with pytest.raises(Refused, match="copy its token file to this host"):
        _join(address, token="guess")
    stranger = Client(address, "guess")
    stranger.nonce, stranger.run = server.ledger.nonce, server.ledger.run
    with pytest.raises(Refused):
        stranger.enqueue(_header(stranger, 0), [b"x"], NO_EPISODES)
    assert stranger.get_parameters() is None
    header, position = (tf.zeros([n], tf.int64) for n in (len(MessageHeader._fields), 2))
    [code] = stranger._call("chunk", header, position, b"x", result=[tf.int64])
    assert int(code) == Reply.DENIED
    assert len(server._receiver.chunks._messages) == 0
    assert int(server.queue.size()) == 0
    assert events == ["a caller without the run's token was refused"]


RUN = "IMPALA_MM_START"


def test_an_actor_takes_no_learner_of_another_run_but_one_started_by_hand_takes_any(
    serve, monkeypatch
):
    events = []
    monkeypatch.setenv(RUN, "1a2b")
    server, address = serve(events=events)
    _join(address, actor=1)
    monkeypatch.setenv(RUN, "3c4d")
    said = r"this learner belongs to another run \(run 1a2b\) than this actor \(run 3c4d\)"
    for _ in range(3):  # it tries again
        with pytest.raises(OtherRun, match=said):
            _join(address, actor=0)
    with pytest.raises(OtherRun, match=said):  # nor does it ask this learner for its flags
        Client(address, TOKEN).hello({"probe": True})
    monkeypatch.delenv(RUN)
    _join(address, actor=2)
    assert sorted(server.actors.heard) == [1, 2]
    (line,) = [event for event in events if "refused" in event]  # logged once
    assert line.startswith("actor 0 on here refused: ")
    _, by_hand = serve()
    monkeypatch.setenv(RUN, "3c4d")
    with pytest.raises(OtherRun, match="a learner that was started by hand"):
        _join(by_hand)


COMPARED = {
    "protocol version": {"protocol": "OTHER"},
    "place of inference (--inference)": {"inference": "OTHER"},
    "environment (--level_name)": {"level_name": "OTHER"},
    **{
        words: {"shared": SHARED | {words: "OTHER"}}
        for words in (*SHARED, "flag of a later version")
    },
}


def test_an_actor_that_differs_is_refused_and_both_are_named(serve):
    events = []
    server, address = serve(events=events)
    for actor, (named, changes) in enumerate(COMPARED.items()):
        words = re.escape(f"this actor's {named} is OTHER, the learner's")
        with pytest.raises(Refused, match=words):
            _join(address, actor=actor, **changes)
        (line,) = [event for event in events if f"actor {actor} on here refused" in event]
        assert re.search(words, line)
    for words in SHARED:
        lacking = {name: text for name, text in SHARED.items() if name != words}
        with pytest.raises(Refused, match=f"this actor's {words} is missing, the learner's is "):
            _join(address, shared=lacking)
    assert not server.actors.heard


def test_a_second_process_with_an_actors_number_displaces_the_first(serve):
    _, address = serve()
    first = _join(address, actor=2, incarnation=1)
    second = _join(address, actor=2, incarnation=5)
    assert second.enqueue(_header(second, 0, 2, 5), [b"x"], NO_EPISODES) == Reply.ACCEPTED
    with pytest.raises(Refused, match="give each its own --task"):
        first.enqueue(_header(first, 0, 2, 1), [b"x"], NO_EPISODES)


def test_an_actor_that_waits_for_room_is_here_and_one_that_is_silent_has_left(serve):
    """A full queue may hold an actor back for longer than the silence that counts as leaving."""
    server, address = serve(capacity=1)
    client = _join(address, actor=3, timeout=1)
    other = _join(address, actor=4)
    assert client.enqueue(_header(client, 0, actor=3), [b"x"], NO_EPISODES) == Reply.ACCEPTED
    with pytest.raises(Unreachable):
        client.enqueue(_header(client, 1, actor=3), [b"y"], NO_EPISODES)
    again = (_header(client, 1, actor=3), [b"y"], NO_EPISODES)
    sender = threading.Thread(target=client.enqueue, args=again)
    sender.start()
    time.sleep(2)
    assert server.forget_silent(1.8) == [4]
    assert list(server.actors.heard) == [3]
    server.queue.dequeue_many(2)
    sender.join(60)
    assert other.enqueue(_header(other, 0, actor=4), [b"z"], NO_EPISODES) == Reply.ACCEPTED
    assert sorted(server.actors.heard) == [3, 4], "back, without another hello"


def _open_round(serve, columns, **how):
    """Serve a round that an actor can play; return the rounds, the server and its address."""
    rounds = Rounds(columns, lambda line: None, **how)
    server, address = serve(rounds=rounds)
    server.publish(0, lambda: b"0")
    assert rounds.close(0.0) is None
    return rounds, server, address


def _claim(server, address, actor):
    """Join, claim two columns of the round, and fall silent."""
    client = _join(address, actor=actor)
    assert client.claim(_header(client, 0, actor)._replace(environments=2)) == Reply.ACCEPTED
    return client


def test_an_actor_that_plays_for_a_round_is_not_forgotten_however_long_it_is_silent(
    serve, monkeypatch
):
    monkeypatch.setattr(rounds_module, "_FIRST_TIMEOUT", 0.2)
    monkeypatch.setattr(rounds_module, "_LEAST_TIMEOUT", 0.2)
    rounds, server, address = _open_round(serve, 4)
    client = _claim(server, address, 3)
    _join(address, actor=4)
    time.sleep(0.1)
    assert server.forget_silent(0.05) == [4], "it plays nothing"
    assert rounds.progress == (0, 4), "its columns are still its own"
    assert rounds.close(0.4) is None
    assert server.forget_silent(0.05) == [], "its first unroll may still come"
    header = _header(client, 0, actor=3)._replace(version=0)
    assert client.enqueue(header, [b"x", b"y"], NO_EPISODES) == Reply.ACCEPTED
    assert (int(server.queue.size()), rounds.dropped) == (2, 0)
    time.sleep(0.1)
    assert server.forget_silent(0.05) == [3], "it plays no more"


def test_in_rounds_an_actor_that_plays_for_long_still_belongs_to_its_learner(serve, monkeypatch):
    """Otherwise the other learners would send their actors to one that seems to have none."""
    monkeypatch.setattr(connected_actors, "SETTLE_SECONDS", 0.05)
    _, server, address = _open_round(serve, 4)
    _claim(server, address, 3)
    _join(address, actor=4)
    time.sleep(0.2)
    assert server.load(0.0).actors == 1, "the other one plays nothing"


def test_an_actor_that_takes_turns_is_forgotten_some_time_after_it_has_crashed(serve, monkeypatch):
    """Its round waits for it alone, and never ends."""
    _, server, address = _open_round(serve, 2, alone=True)
    _claim(server, address, 0)
    time.sleep(0.1)
    assert server.forget_silent(0.05) == [], "its first unroll may still come"
    monkeypatch.setattr(rounds_module, "_FIRST_UNROLL_SECONDS", 0.0)
    assert server.forget_silent(0.05) == [0]


# -- ports


def test_a_learner_that_answers_at_no_address_of_its_actors_is_refused(serve):
    """Such as one whose port another process shares, or one behind a wrong --learner_hosts."""
    _, other = serve()
    held = HeldAddress(f"127.0.0.1:{free_port()}")
    with pytest.raises(OSError, match=f"{other} is answered by another learner"):
        Server(other, held, TOKEN, IDENTITY, 1)


def test_a_client_waits_at_a_port_that_a_starting_learner_holds_and_notices_when_it_listens():
    held = HeldAddress(address := f"127.0.0.1:{free_port()}")
    begin = time.monotonic()
    threading.Timer(0.3, held.release).start()
    with within(2), pytest.raises(Unreachable, match="nothing answers at"):
        Client(address, TOKEN)
    assert time.monotonic() - begin > 0.2


def test_nobody_at_the_address_is_said_within_the_deadline():
    with within(5), pytest.raises(Unreachable, match="nothing answers at"):
        Client(f"127.0.0.1:{free_port()}", TOKEN, timeout=1)


def test_the_kernel_closes_the_connection_to_a_learner_whose_host_has_vanished(serve):
    """Otherwise calls would wait for retransmissions long after the network is back."""
    _, address = serve()
    client = _join(address)
    port, found = int(address.rpartition(":")[2]), []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
            if each.getpeername()[1:2] == (port,):
                found.append(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    assert found
    assert all(0 < milliseconds <= 20_000 for milliseconds in found)
    before = len(os.listdir("/proc/self/fd"))
    assert all(client.still_answers() for _ in range(20))
    assert len(os.listdir("/proc/self/fd")) <= before + 5, "no copies of them are left open"


def test_a_run_that_shall_be_repeatable_refuses_a_second_actor(serve):
    _, address = serve(rounds=Rounds(4, alone=True), changes={"deterministic_run": True})
    _join(address, actor=3, deterministic_run=True)
    with pytest.raises(Refused, match="actor 3 is connected"):
        _join(address, actor=0, deterministic_run=True)
    _join(address, actor=3, incarnation=2, deterministic_run=True)
