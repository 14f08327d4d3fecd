"""An actor's connection to a real server: pulls, waiting, and unrolls that are sent once."""

import functools
import threading
import time

import pytest
from processes import free_port
from supervising import until

from impala_mm.actor import learner_link, policy_puller
from impala_mm.actor.host_cache import HostParameterCache
from impala_mm.actor.learner_link import LearnerLink, UnrollBatch
from impala_mm.data.compression import compress_lz4, decompress
from impala_mm.data.episodes import to_rows
from impala_mm.runtime.ports import HeldAddress
from impala_mm.transport import messages
from impala_mm.transport.client import Client, Unreachable
from impala_mm.transport.connected_actors import LearnerLoad
from impala_mm.transport.rounds import Rounds
from impala_mm.transport.server import Server

IDENTITY = {"level_name": "L", "shared": {"network": "n", "layout of parameters": "a"}}
NO_EPISODES = to_rows([])


class Links:
    """The links of actors with a server, or with several; `said` has what they print."""

    def __init__(self):
        self._links, self._stop, self.said = [], threading.Event(), []

    def start(self, *addresses, first=0, pull_secs=0.0, columns=0, **more):
        """Start the next actor, which may be named."""
        actor = more.pop("actor", len(self._links))
        me = IDENTITY | {"level": "L", "protocol": messages.PROTOCOL, "actor": actor}
        me["groups"] = list(more.pop("groups", ()))
        of = addresses, first, me, "token", pull_secs, columns, self.said.append, self._stop
        self._links.append(LearnerLink(*of, **more))
        self._links[-1].start()
        return self._links[-1]

    def join(self, *addresses, **how):
        """Start an actor, and wait until it is connected."""
        one = self.start(*addresses, **how)
        until(one.connected.is_set)
        return one

    def end(self, *servers):
        """Stop all."""
        self._stop.set()
        for server in servers:
            server.close()
        for one in self._links:
            one.join(60)
            assert one.failure is None
            one.close()


@pytest.fixture
def links(tmp_path, monkeypatch):
    """Return the links of a test's actors, whose hosts' caches are in a folder of the test."""
    monkeypatch.setattr(
        policy_puller, "HostParameterCache", lambda run_id: HostParameterCache(run_id, tmp_path)
    )
    return Links()


def _server(address, identity, capacity, columns, say):
    rounds = Rounds(columns, say) if columns else None
    held = HeldAddress(address)
    return Server(address, held, "token", IDENTITY | identity, capacity, say, rounds=rounds)


@pytest.fixture
def here(links, request):
    """Return a server, for rounds of this many columns, and `join`, which connects an actor."""
    address, columns = f"127.0.0.1:{free_port()}", getattr(request, "param", 0)
    server = _server(address, {"run_id": "r"}, 100, columns, links.said.append)
    server.said = links.said
    server.publish(0, lambda: b"0")
    yield server, functools.partial(links.join, address)
    links.end(server)


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
    pulls = _count_pulls(server)
    links = [join() for _ in range(8)]
    assert len(pulls) == 1
    for version in range(1, 6):
        server.publish(version, lambda version=version: b"%d" % version)
        for one in links:
            assert one.send(_group(one, b"x"))
        until(lambda v=version: all(one.newest.version == v for one in links))
        assert {one.newest.vector for one in links} == {b"%d" % version}
        assert len(pulls) <= version + 3, "now and then two may pull, one after the other"
    assert len(pulls) <= 9


def test_unrolls_are_sent_as_the_actor_packs_them(here):
    """This server does not know the size of an unroll: it puts them into its queue as they are."""
    server, join = here
    one, unroll = join(compress=compress_lz4), bytes(1000)
    assert one.send(_group(one, unroll, unroll))
    contents, _ = server.queue.dequeue_many(2)
    for content in contents.numpy():
        assert len(content) < 100
        assert decompress(content, 1000) == unroll


def test_an_actor_pulls_no_more_often_than_it_may(here):
    server, join = here
    pulls = _count_pulls(server)
    one = join(pull_secs=1000)
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
    pulls = _count_pulls(server)
    one = join(pull_secs=1000, columns=2)
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
    one = join(columns=2)
    for _ in range(3):
        assert one.wait_for_turn()
        one.send(_group(one, b"x", b"y"))
    assert _closed(server) == 6
    assert len(claims) == 1, "that of the first turn"


@pytest.mark.parametrize("here", [4], indirect=True)
def test_actors_of_one_host_share_the_pull_of_a_round(here):
    server, join = here
    assert server.rounds.close(0.0) is None
    links = [join(columns=1) for _ in range(4)]
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
    one = join()
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
    pulls = _count_pulls(server)
    assert [join().newest.vector for actor in range(3)] == [b"0"] * 3
    assert len(set(pulls)) == 3
    said = "cannot share parameters with this host's other actors: /dev/shm is another user's"
    assert any(line.startswith(said) for line in server.said)


def test_an_actor_notices_that_another_learner_answers_without_any_call_having_failed(here):
    """Its address is the same, and its policy older: the actor continues with it at once."""
    server, join = here
    server.publish(7, lambda: b"seven")
    one = join()
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


def test_a_queue_that_stays_full_is_no_learner_that_is_away(here, monkeypatch):
    """An actor held back past its deadline keeps its connection, and sends its unrolls once."""
    server, join = here
    make = Client
    monkeypatch.setattr(learner_link, "Client", lambda address, token: make(address, token, 1.0))
    server.publish(0, lambda: b"0")
    one = join()
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
        self.said = said
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.absent = f"127.0.0.1:{free_port()}"
        identity = {"run_id": "r", "learners": self.addresses}
        self.servers = [_server(each, identity, 1, columns, said.append) for each in self.addresses]
        for server in self.servers:
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
def several(links, request):
    """Return two learners, for rounds of this many columns, and `join`, which connects an actor."""
    learners = Run(links.said, getattr(request, "param", 0))
    yield learners, links.join
    links.end(*learners.servers)


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


def test_an_actor_begins_with_its_own_learner_and_where_that_is_absent_with_the_next(several):
    learners, join = several
    for actor in range(3):
        join(*learners.addresses, first=actor % 2)
    join(learners.absent, learners.addresses[1])
    assert [sorted(server.actors.heard) for server in learners.servers] == [[0, 2], [1, 3]]


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


def test_an_actor_says_that_a_learner_has_no_policy_or_is_another_runs_and_waits_for_its_own(
    links, monkeypatch
):
    monkeypatch.setenv("IMPALA_MM_START", "1a2b")
    address = f"127.0.0.1:{free_port()}"
    server = _server(address, {"run_id": "r"}, 1, 0, print)
    early = links.start(address)
    until(lambda: any("waiting for the learner" in line for line in links.said))
    assert not early.connected.is_set()
    server.publish(0, lambda: b"weights")
    until(early.connected.is_set)
    monkeypatch.setenv("IMPALA_MM_START", "3c4d")
    one = links.start(address)
    refused = "another run (run 1a2b) than this actor (run 3c4d)"
    until(lambda: any(refused in line for line in links.said))
    assert not one.connected.wait(0.4)
    assert "".join(links.said).count(refused) == 1, "it is repeated after 10 s"
    monkeypatch.setenv("IMPALA_MM_START", "1a2b")  # as if its own learner had come back
    until(one.connected.is_set)
    links.end(server)


def test_the_environments_of_actors_are_numbered_and_keep_their_numbers_after_a_restart(here):
    _, join = here
    links = [join(groups=groups) for groups in ([2, 1], [4])]
    assert [one.numbers for one in links] == [(0, 1, 3), (3, 1, 7)]
    links[0].send(_group(links[0], b"x"))
    until(lambda: links[0].numbers.bound == 7)
    assert join(actor=0, groups=[2, 1]).numbers == (0, 1, 7), "as if it were restarted"
