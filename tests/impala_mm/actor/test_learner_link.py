"""An actor's connection to a real server: pulls, waiting, and unrolls that are sent once."""

import json
import threading
import time
import weakref
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from processes import free_port
from supervising import until

from impala_mm.actor import learner_link, policy_puller
from impala_mm.actor.learner_link import LearnerLink, UnrollBatch
from impala_mm.actor.policy_puller import HostParameterCache
from impala_mm.data.compression import compress_lz4, decompress, leave_uncompressed
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport import connected_actors, messages
from impala_mm.transport.client import Client, Unreachable
from impala_mm.transport.connected_actors import LearnerLoad
from impala_mm.transport.messages import NumberRange
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server

IDENTITY = {"level_name": "L", "unroll": "u", "network": "n", "acting": "a"}
NO_EPISODES = np.zeros([0, 3], np.float32)


@pytest.fixture
def here(tmp_path, monkeypatch, request):
    """Return a server, for rounds of this many columns, and `join`, which connects an actor."""
    monkeypatch.setattr(
        policy_puller, "HostParameterCache", lambda run_id: HostParameterCache(run_id, tmp_path)
    )
    address = f"127.0.0.1:{free_port()}"
    events = []
    stop, links, said = threading.Event(), [], []
    columns = getattr(request, "param", 0)
    server = Server(
        *(address, HeldAddress(address), "token", IDENTITY | {"run_id": "r"}, 100, events.append),
        rounds=Rounds(columns, said.append) if columns else None,
    )

    def join(actor, pull_secs=0.0, columns=0, pack=leave_uncompressed, groups=()):
        me = IDENTITY | {
            "level": "L",
            "protocol": messages.PROTOCOL,
            "actor": actor,
            "groups": groups,
        }
        links.append(
            LearnerLink([address], 0, me, "token", pull_secs, columns, said.append, stop, pack)
        )
        links[-1].start()
        if server._parameters.version is not None:
            until(links[-1].connected.is_set)
        return links[-1]

    server.said = said
    yield server, join
    stop.set()
    server.close()
    for one in links:
        one.join(60)
        assert one.failure is None
        one.close()


def _group(link, *contents):
    return UnrollBatch(link.newest.run, link.newest.version, list(contents), NO_EPISODES)


def _count_pulls(server):
    pulls = []
    read = server._parameters.read

    def counted(version, offset, reader):
        pulls.append(reader)
        return read(version, offset, reader)

    server._parameters.read = counted
    return pulls


def test_actors_of_one_host_share_one_pull(here):
    """Five versions reach eight actors, and each version is downloaded once."""
    server, join = here
    server.publish(0, lambda: b"0")
    pulls = _count_pulls(server)
    links = [join(actor) for actor in range(8)]
    assert len(pulls) == 1
    for version in range(1, 6):
        server.publish(version, lambda version=version: b"%d" % version)
        for one in links:
            assert one.send(_group(one, b"x"))
        until(lambda v=version: all(one.newest.version == v for one in links))
        assert {one.newest.vector for one in links} == {b"%d" % version}
        assert len(pulls) <= version + 3, "now and then two may pull, one after the other"
    assert len(pulls) <= 9


def test_a_message_says_what_the_actors_processes_use(here, monkeypatch):
    monkeypatch.setenv("IMPALA_MM_HOST", "10.0.0.5")
    server, join = here
    server.publish(0, lambda: b"0")
    one = join(0)
    assert one.send(_group(one, b"x"))
    (use,) = [until(lambda: server.actors.use_by_host().get("10.0.0.5"))]
    assert use.memory == pytest.approx(one._use.newest().memory, abs=2)


def test_unrolls_are_sent_as_the_actor_packs_them(here):
    """This server does not know the size of an unroll: it puts them into its queue as they are."""
    server, join = here
    server.publish(0, lambda: b"0")
    one, unroll = join(0, pack=compress_lz4), bytes(1000)
    assert one.send(_group(one, unroll, unroll))
    contents, _ = server.queue.dequeue_many(2)
    for content in contents.numpy():
        assert len(content) < 100
        assert decompress(content, 1000) == unroll


def test_an_actor_pulls_no_more_often_than_it_may(here):
    server, join = here
    server.publish(0, lambda: b"0")
    pulls = _count_pulls(server)
    one = join(0, pull_secs=1000)
    for version in range(1, 5):
        server.publish(version, lambda: b"x")
        one.send(_group(one, b"x"))
    until(lambda: int(server.queue.size()) == 4)
    time.sleep(0.3)
    assert len(pulls) == 1
    assert one.newest.version == 0


@pytest.mark.parametrize("here", [2], indirect=True)
def test_in_rounds_each_unroll_is_played_by_the_policy_that_the_one_before_it_helped_to_make(here):
    server, join = here
    rounds = server.rounds
    server.publish(0, lambda: b"0")
    pulls = _count_pulls(server)
    one = join(0, pull_secs=1000, columns=2)
    versions = []

    def play():
        while one.wait_for_turn():
            versions.append(one.newest.version)
            one.send(_group(one, b"x", b"y"))

    playing = threading.Thread(target=play)
    playing.start()
    for version in range(4):
        if version:
            server.publish(version, lambda: b"x")
        until(lambda: rounds.close(0.0) == 2)
        time.sleep(0.1)
        assert versions == list(range(version + 1)), "it waits"
        assert server.queue.dequeue_many(2)[1].numpy().tolist() == [version] * 2
    assert len(pulls) == 4, "each version once, however rarely it may pull otherwise"
    assert one.policy_wait > 0
    one._stop_asked.set()
    playing.join(60)
    assert not playing.is_alive()
    assert (rounds.padded, rounds.dropped) == (0, 0)


@pytest.mark.parametrize("here", [6], indirect=True)
def test_the_answer_to_unrolls_grants_free_columns_of_the_round_and_no_claim_is_needed(
    here, monkeypatch
):
    server, join = here
    claims, claim = [], Client.claim
    monkeypatch.setattr(Client, "claim", lambda *given: claims.append(1) or claim(*given))
    server.publish(0, lambda: b"0")
    assert server.rounds.close(0.0) is None, "the round is open"
    one = join(0, columns=2)
    for _ in range(3):
        assert one.wait_for_turn()
        one.send(_group(one, b"x", b"y"))
    assert _closed(server) == 6
    assert len(claims) == 1, "that of the first turn"


@pytest.mark.parametrize("here", [2], indirect=True)
def test_an_actor_that_is_sent_on_or_gives_up_is_granted_no_columns(here, monkeypatch):
    server, join = here
    server.publish(0, lambda: b"0")
    assert server.rounds.close(0.0) is None, "the round is open"
    one = join(0, columns=2)
    header = one._client.header(0, one._incarnation)._replace(environments=2)

    def granted():
        return server.make_reply(header, messages.Reply.ACCEPTED).granted

    assert granted() == 0
    monkeypatch.setattr(server.actors, "loads", [LearnerLoad(0, 0, n, True) for n in (2, 0)])
    monkeypatch.setattr(connected_actors, "choose_learner_without_actors", lambda *loads: 1)
    server.actors._movable.add(0)
    assert granted() == messages.NO_POLICY, "it is sent to the other learner"
    assert granted() == messages.NO_POLICY, "an earlier call ends after that"
    assert server.rounds._open[0].free == 2
    server.actors.heard_from(0)
    monkeypatch.setattr(server.actors, "loads", [])
    assert granted() == 0
    failure = {"text": "x", "kind": "x", "traceback": "x", "gave_up": True}
    server.hello(json.dumps({"probe": True, "actor": 0, "failure": failure}).encode())
    assert server.rounds._open[0].free == 2


@pytest.mark.parametrize(
    ("mean", "deviation", "latest", "most"),
    [(0.09, 0.004, 0.002, 9), (0.09, 0.02, 0.004, 15), (0.5, 0.02, 0.004, 20), (5, 0.2, 0.03, 90)],
)
def test_a_turn_is_noticed_some_milliseconds_late_after_few_claims(mean, deviation, latest, most):
    """A claim takes 0.6 ms here."""
    rng, waits = np.random.default_rng(0), deque([0.0], maxlen=4)
    late, claims = [], 0
    for turn in rng.normal(mean, deviation, 500):
        waited = 0.0
        while waited < turn:
            waited += learner_link.seconds_to_next_claim(waited, min(waits)) + 0.0006
            claims += 1
        late.append(waited - turn)
        waits.append(waited)
    assert np.mean(late[4:]) < latest
    assert claims / 500 < most


@pytest.mark.parametrize("here", [4], indirect=True)
def test_actors_of_one_host_share_the_pull_of_a_round(here):
    server, join = here
    server.publish(0, lambda: b"0")
    assert server.rounds.close(0.0) is None
    links = [join(actor, columns=1) for actor in range(4)]
    assert all(one.wait_for_turn() for one in links)
    pulls = _count_pulls(server)
    for one in links:
        one.send(_group(one, b"x"))
    assert _closed(server) == 4
    turns = [threading.Thread(target=one.wait_for_turn) for one in links]
    for turn in turns:
        turn.start()
    until(lambda: len(server.rounds._waiting) == 4)
    server.publish(1, lambda: b"1")
    assert server.rounds.close(0.0) is None
    for turn in turns:
        turn.join(60)
    assert {one.newest.vector for one in links} == {b"1"}
    assert len(pulls) == 1


def _closed(server):
    """Return the number of unrolls of the server's round, which is then closed."""
    return until(lambda: server.rounds.close(0.1), 20)


def test_a_pull_that_fails_after_a_send_repeats_the_pull_and_not_the_send(here, monkeypatch):
    server, join = here
    server.publish(0, lambda: b"0")
    one = join(0)
    failing = []
    pull = one._puller.pull_newest

    def fails_once(client):
        if client.version == 1 and not failing:
            failing.append(client.version)
            raise Unreachable("get_parameters: no answer")
        pull(client)

    monkeypatch.setattr(one._puller, "pull_newest", fails_once)
    server.publish(1, lambda: b"1")
    one.send(_group(one, b"once"))
    until(lambda: one.newest.version == 1)
    time.sleep(0.3)
    assert failing
    assert int(server.queue.size()) == 1


def test_without_shared_memory_each_actor_pulls_for_itself_and_says_so(here, monkeypatch):
    def refuses(run_id):
        raise PermissionError("/dev/shm is another user's")

    monkeypatch.setattr(policy_puller, "HostParameterCache", refuses)
    server, join = here
    server.publish(0, lambda: b"0")
    pulls = _count_pulls(server)
    assert [join(actor).newest.vector for actor in range(3)] == [b"0"] * 3
    assert len(set(pulls)) == 3
    said = (
        "cannot share parameters with this host's other actors: /dev/shm is another user's; from "
        "now on it downloads them for itself"
    )
    assert said in server.said


def test_an_actor_leaves_a_cache_that_is_too_small_says_so_once_and_keeps_its_newer_policy(
    here, monkeypatch
):
    server, join = here
    server.publish(0, lambda: b"0")
    one, other = join(0), join(1)

    def is_full(cache, version, vector):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(HostParameterCache, "store", is_full)
    for version in (1, 2, 3):
        server.publish(version, lambda version=version: b"%d" % version)
        one.send(_group(one, b"x"))
        until(lambda version=version: one.newest.version == version)
    sentence = "cannot share parameters with this host's other actors: [Errno 28] No space left"
    assert len([line for line in server.said if line.startswith(sentence)]) == 1
    one._puller.join_cache("r")
    assert one._puller._cache is None, "a new connection does not try it again"
    one._puller._cache = other._puller._cache  # it holds version 0
    assert one._puller.pull_any(one._client).version == one.newest.version == 3
    one._puller._cache = None


def test_before_the_first_policy_an_actor_waits_and_says_so(here, monkeypatch):
    server, join = here
    one = join(0)
    until(lambda: any("waiting for the learner" in line for line in server.said))
    assert not one.connected.is_set()
    server.publish(0, lambda: b"0")
    until(one.connected.is_set)


def test_an_actor_notices_that_another_learner_answers_without_any_call_having_failed(here):
    """Its address is the same, and its policy older: the actor continues with it at once."""
    server, join = here
    server.publish(7, lambda: b"seven")
    one = join(0)
    # As after a restart:
    server.ledger.nonce = server._identity["nonce"] = server.ledger.nonce + 1
    server._identity["run_id"], server.ledger.run = "later", messages.run_number("later")
    server.actors.heard.clear()
    server._parameters.version = None
    server.publish(2, lambda: b"two")
    begun = _group(one, b"begun under the old one")
    one.send(begun)
    until(lambda: one.newest == (server.ledger.run, 2, b"two"))
    one.send(begun._replace(contents=[b"so was this"]))
    one.send(_group(one, b"new"))
    until(lambda: int(server.queue.size()) == 1)
    assert server.queue.dequeue()[0].numpy() == b"new"
    assert server.ledger.stale == 2
    until(lambda: server.dropped == 2)
    assert list(server.actors.heard) == [0]


def test_an_error_of_the_learner_is_printed_and_is_no_full_queue(here, monkeypatch):
    server, join = here
    server.publish(0, lambda: b"0")
    one = join(0)
    calls = []

    def decode(header, sent):
        calls.append(header)
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return list(sent)

    monkeypatch.setattr(server._receiver, "_decode_unrolls", decode)
    one.send(_group(one, b"mine"))
    until(lambda: int(server.queue.size()) == 1)
    (line,) = [line for line in server.said if "could not answer" in line]
    assert "out of memory" in line
    assert not any("queue is full" in line for line in server.said)


def test_the_numbers_of_environments_are_read_while_the_connection_ends():
    """The playing thread reads them, and the link's thread drops its client at any time."""

    class Link:
        _numbers, clients = NumberRange(0, 1, 4), deque([SimpleNamespace(environments=7)])

        @property
        def _client(self):
            return self.clients.pop() if self.clients else None

    assert LearnerLink.numbers.fget(Link()) == (0, 1, 7)


def test_a_queue_that_stays_full_is_no_learner_that_is_away(here, monkeypatch):
    """An actor held back past its deadline keeps its connection, and sends its unrolls once."""
    server, join = here
    make = Client
    monkeypatch.setattr(learner_link, "Client", lambda address, token: make(address, token, 1.0))
    server.publish(0, lambda: b"0")
    one = join(0)
    server.queue.enqueue_many([[b"other"] * 100, [0] * 100])  # the queue is full
    one.send(_group(one, b"mine"))
    until(lambda: "the learner's queue is full: waiting for room" in server.said)
    server.queue.dequeue_many(100)
    until(lambda: int(server.queue.size()) == 1)
    time.sleep(1.5)
    assert server.queue.dequeue()[0].numpy() == b"mine"
    assert int(server.queue.size()) == 0
    assert not any("does not answer" in line for line in server.said)


# -- several learners


class Run:
    """Two learners of one run, and the address of a third that does not run."""

    def __init__(self, said, columns):
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.absent = f"127.0.0.1:{free_port()}"
        identity = IDENTITY | {"run_id": "r", "learners": self.addresses}
        self.servers = [
            Server(
                *(address, HeldAddress(address), "token", identity, 1, said.append),
                rounds=Rounds(columns, said.append) if columns else None,
            )
            for address in self.addresses
        ]
        for rank, server in enumerate(self.servers):
            server.actors.rank = rank
            server.publish(0, lambda: b"0")

    def starve(self, rank):
        """Report to both learners that this one waits for unrolls and has no actors."""
        needs = [
            LearnerLoad(wait_share=0.0, queue_fill=1.0, actors=2, settled=True)
            for _ in self.servers
        ]
        needs[rank] = LearnerLoad(wait_share=0.9, queue_fill=0.0, actors=0, settled=True)
        for server in self.servers:
            server.actors.loads = needs
            server.actors.changed_at = -1e9


@pytest.fixture
def several(tmp_path, monkeypatch, request):
    """Return two learners, for rounds of this many columns, and `join`, which connects an actor."""
    monkeypatch.setattr(
        policy_puller, "HostParameterCache", lambda run_id: HostParameterCache(run_id, tmp_path)
    )
    stop, links, said = threading.Event(), [], []
    learners = Run(said, getattr(request, "param", 0))

    def join(*addresses, start=0, columns=0, groups=()):
        me = IDENTITY | {"level": "L", "protocol": messages.PROTOCOL, "actor": len(links)}
        me["groups"] = list(groups)
        links.append(LearnerLink(addresses, start, me, "token", 0.0, columns, said.append, stop))
        links[-1].start()
        until(links[-1].connected.is_set)
        return links[-1]

    learners.said = said
    yield learners, join
    stop.set()
    for server in learners.servers:
        server.close()
    for one in links:
        one.join(60)
        assert one.failure is None
        one.close()


def _taken(server):
    return server.queue.dequeue()[0].numpy()


def test_an_actor_goes_where_it_is_sent_and_what_it_played_before_counts_there(several):
    learners, join = several
    full, starved = learners.servers
    one = join(*learners.addresses)
    learners.starve(1)
    group = _group(one, b"first")
    one.send(group)
    until(lambda: 0 in starved.actors.heard)
    assert 0 not in full.actors.heard
    one.send(group._replace(contents=[b"second"]))
    assert (_taken(full), _taken(starved)) == (b"first", b"second")
    assert (full.ledger.stale, starved.ledger.stale) == (0, 0)


def test_an_actor_that_is_sent_to_another_learner_keeps_its_environments_numbers(several):
    learners, join = several
    join(learners.addresses[1], groups=[4])
    one = join(*learners.addresses, groups=[1, 2])
    assert one.numbers == (0, 2, 6)
    learners.starve(1)
    one.send(_group(one, b"first"))
    until(lambda: 1 in learners.servers[1].actors.heard)
    numbers = learners.servers[1].numbers
    assert numbers.of_group(1, 1, 2).tolist() == [2, 4]
    assert numbers.count == 8, "that of the actor which joined it first"
    assert one.numbers[:2] == (0, 2)


def test_an_actor_that_is_alone_with_its_learner_stays(several):
    learners, join = several
    one = join(learners.addresses[0])
    learners.starve(1)
    one.send(_group(one, b"first"))
    one.send(_group(one, b"second"))
    assert [_taken(learners.servers[0]) for _ in range(2)] == [b"first", b"second"]


def test_an_actor_held_back_by_a_full_queue_is_sent_on_and_its_unroll_comes_in_once(
    several, monkeypatch
):
    monkeypatch.setattr(learner_link, "_CALL_SECONDS", 0.5)
    learners, join = several
    full, starved = learners.servers
    one = join(*learners.addresses)
    one.send(_group(one, b"fills it"))
    one.send(_group(one, b"waits"))
    time.sleep(1.5)
    assert 0 in full.actors.heard, "nobody needs it more"
    learners.starve(1)
    until(lambda: 0 in starved.actors.heard)
    one.send(_group(one, b"there"))
    assert _taken(starved) == b"there"
    assert [_taken(full) for _ in range(2)] == [b"fills it", b"waits"]
    until(lambda: 0 not in full.actors.heard)
    assert [int(server.queue.size()) for server in learners.servers] == [0, 0]


def test_where_a_learner_is_absent_the_next_is_joined(several):
    learners, join = several
    join(learners.absent, learners.addresses[1])
    assert list(learners.servers[1].actors.heard) == [0]


def test_an_actor_begins_with_its_own_learner(several):
    learners, join = several
    for actor in range(4):
        join(*learners.addresses, start=actor % 2)
    assert [sorted(server.actors.heard) for server in learners.servers] == [[0, 2], [1, 3]]


def test_while_all_are_away_each_round_begins_with_its_own(monkeypatch):
    """Otherwise all actors that wait for learners would meet at the first one."""
    tried, stop = [], threading.Event()

    class Away:
        def __init__(self, address, token):
            tried.append(address)
            raise Unreachable("away")

    def pause(waiting, first, most, why=""):
        tried.append("pause")
        if tried.count("pause") == 3:
            stop.set()

    monkeypatch.setattr(learner_link, "Client", Away)
    monkeypatch.setattr(learner_link.Backoff, "pause", pause)
    link = LearnerLink(["a", "b", "c"], 1, {}, "", 0.0, 0, print, stop)
    link.run()
    assert tried == ["b", "c", "a", "pause"] * 3


@pytest.fixture
def unanswered(monkeypatch):
    """Let the first call of enqueue get no answer, and its learner appear unreachable."""
    calls = []
    enqueue, still_answers = Client.enqueue, Client.still_answers

    def first_fails(client, *arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise Unreachable("enqueue: no answer")
        return enqueue(client, *arguments)

    monkeypatch.setattr(Client, "enqueue", first_fails)
    monkeypatch.setattr(Client, "still_answers", lambda c: len(calls) > 1 and still_answers(c))


@pytest.mark.usefixtures("unanswered")
def test_a_send_that_was_not_answered_is_made_again_to_the_same_learner(several):
    learners, join = several
    one = join(*learners.addresses)
    one.send(_group(one, b"once"))
    assert _taken(learners.servers[0]) == b"once"
    assert learners.servers[0].dropped == 0


@pytest.mark.usefixtures("unanswered")
def test_unrolls_whose_send_was_not_answered_go_to_no_other_learner_and_are_counted(several):
    learners, join = several
    one = join(*learners.addresses)
    learners.servers[0].close()
    one.send(_group(one, b"a", b"b"))
    until(lambda: 0 in learners.servers[1].actors.heard)
    one.send(_group(one, b"next"))
    assert _taken(learners.servers[1]) == b"next"
    until(lambda: learners.servers[1].dropped == 2)
    assert "2 unrolls dropped: the learner did not confirm that it has them" in learners.said


@pytest.mark.parametrize("several", [1], indirect=True)
def test_an_actor_that_waits_for_a_round_is_sent_to_a_learner_without_actors(several):
    learners, join = several
    for server in learners.servers:
        server.publish(1, lambda: b"1")
        assert server.rounds.close(0.0) is None
    links = [join(*learners.addresses, columns=1) for _ in range(2)]
    assert links[0].wait_for_turn()
    learners.starve(1)
    assert links[1].wait_for_turn(), "by a column of the other learner's round"
    links[1].send(_group(links[1], b"moved"))
    assert _taken(learners.servers[1]) == b"moved"


def test_an_actor_says_that_a_learner_belongs_to_another_run_and_waits_for_its_own(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(
        policy_puller, "HostParameterCache", lambda run_id: HostParameterCache(run_id, tmp_path)
    )
    monkeypatch.setenv("IMPALA_MM_START", "1a2b")
    address, stop, said = f"127.0.0.1:{free_port()}", threading.Event(), []
    identity = IDENTITY | {"run_id": "r"}
    server = Server(address, HeldAddress(address), "token", identity, 1, lambda event: None)
    server.publish(0, lambda: b"weights")
    monkeypatch.setenv("IMPALA_MM_START", "3c4d")
    me = IDENTITY | {"level": "L", "protocol": messages.PROTOCOL, "actor": 0}
    link = LearnerLink([address], 0, me, "token", 0.0, 0, said.append, stop)
    link.start()
    until(lambda: said)
    assert not link.connected.wait(0.4)
    assert said == [
        f"waiting for the learner at {address} (0 s so far): this learner belongs to another run "
        f"(run 1a2b) than this actor (run 3c4d)"
    ], "once, until it is repeated after 10 s"
    monkeypatch.setenv("IMPALA_MM_START", "1a2b")  # as if its own learner had come back
    until(link.connected.is_set)
    stop.set()
    server.close()
    link.join(60)
    link.close()


def test_the_environments_of_actors_are_numbered_and_keep_their_numbers_after_a_restart(here):
    server, join = here
    server.publish(0, lambda: b"0")
    links = [join(actor, groups=groups) for actor, groups in enumerate(([2, 1], [4]))]
    assert [one.numbers[:2] for one in links] == [(0, 1), (3, 1)]
    assert [one.numbers.bound for one in links] == [3, 7]
    links[0].send(_group(links[0], b"x"))
    until(lambda: links[0].numbers.bound == 7)
    assert join(0, groups=[2, 1]).numbers == (0, 1, 7), "as if it were restarted"


def test_a_client_is_freed_before_the_next_one_connects(here, monkeypatch):
    """gRPC shares connections and their pauses between clients of an address."""
    server, join = here
    server.publish(0, lambda: b"0")
    made, left = [], []

    class Failing(Client):
        def __init__(self, *arguments):
            left.append([each() for each in made if each()])
            super().__init__(*arguments)
            made.append(weakref.ref(self))

        def enqueue(self, *arguments):
            if len(made) < 3:
                raise Unreachable("lost")
            return super().enqueue(*arguments)

        def still_answers(self):
            return False

    monkeypatch.setattr(learner_link, "Client", Failing)
    one = join(0)
    assert one.send(_group(one, b"x"))
    until(lambda: int(server.queue.size()))
    assert left == [[], [], []]
