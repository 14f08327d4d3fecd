"""Each message counts once, whatever the order and however often it is repeated."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from impala_mm.data.episodes import to_rows
from impala_mm.transport.delivery import DeliveryLedger
from impala_mm.transport.messages import (
    CONNECTION_BITS,
    CONTENT_OMITTED,
    UNROLLS,
    MessageHeader,
    Reply,
    new_incarnation,
)

NO_EPISODES = to_rows([])


class Records:
    """A server that keeps what the ledger calls it with."""

    def __init__(self):
        self.heard, self.arrived = [], []

    def heard_from(self, actor):
        self.heard.append(actor)

    def delivered(self, header, episodes):
        self.arrived.append(header)


def _ledger(actor=3, incarnation=9):
    ledger = DeliveryLedger(1, 2, Records())
    ledger.join(actor, incarnation)
    return ledger


def _header(number, actor=3, incarnation=9, stream=UNROLLS, **changes):
    header = MessageHeader(1, 2, actor, incarnation, stream, number)
    return header._replace(**changes)


def test_the_steps_of_a_group_pass_in_order_and_the_last_gets_its_answer_again():
    ledger = _ledger()
    for number in range(3):
        step = _header(number, stream=4)
        assert ledger.try_accept(step._replace(number=number + 1))[0] == Reply.LOST
        assert ledger.try_accept(step) == (Reply.ACCEPTED, b"")
        assert ledger.try_accept(step) == (Reply.RUNNING, b"")
        assert ledger.try_accept(step._replace(number=number + 1))[0] == Reply.LOST
        ledger.complete(step, NO_EPISODES, b"answer %d" % number)
        assert ledger.try_accept(step) == (Reply.STALE, b"answer %d" % number)
    assert ledger.try_accept(_header(1, stream=4)) == (Reply.STALE, b"")
    ledger.forget(step.stream_key)
    assert ledger.try_accept(_header(3, stream=4))[0] == Reply.LOST
    assert ledger.try_accept(_header(0, stream=4))[0] == Reply.ACCEPTED
    ledger.complete(step, NO_EPISODES, b"late")  # the call was accepted before the stream's end
    ledger.complete(_header(0, stream=4), NO_EPISODES, b"first")
    assert ledger.try_accept(_header(0, stream=4)) == (Reply.STALE, b"first")


def test_messages_for_another_process_or_run_are_foreign_and_counted():
    ledger = _ledger()
    for foreign in (_header(0, nonce=7), _header(0, run=7), _header(0, stream=0, nonce=7)):
        assert ledger.refusal(foreign) == Reply.FOREIGN
        assert ledger.try_accept(foreign) == (Reply.FOREIGN, b"")
    assert ledger.stale == 3
    assert ledger.try_accept(_header(0, actor=4)) == (Reply.DISPLACED, b""), "it never joined"
    assert ledger._actors.heard == []
    assert ledger.try_accept(_header(0))[0] == Reply.ACCEPTED
    assert ledger._actors.heard == [3]


def test_a_restarted_actor_starts_over_and_its_old_process_is_displaced():
    first, second = (new_incarnation() for _ in range(2))
    for old, new in ((first, second), (second, first), (first, first + 1)):
        ledger, other = _ledger(incarnation=old), _header(0, actor=4, incarnation=7)
        ledger.join(4, 7)
        ledger.try_accept(other)
        ledger.try_accept(_header(0, incarnation=old))
        assert ledger.join(3, new)
        assert ledger.try_accept(other)[0] == Reply.RUNNING, "another actor's messages stay known"
        assert ledger.try_accept(_header(0, incarnation=new))[0] == Reply.ACCEPTED
        assert ledger.try_accept(_header(1, incarnation=old))[0] == Reply.DISPLACED


def test_a_hello_that_arrives_late_or_twice_changes_nothing():
    life = new_incarnation()
    ledger = _ledger(incarnation=life + 2)
    ledger.try_accept(_header(0, incarnation=life + 2))
    for late in (life, life + 1, life + 2):
        assert not ledger.join(3, late)
        assert ledger.try_accept(_header(0, incarnation=life + 2))[0] == Reply.RUNNING


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1500), max_size=60))
def test_the_ledger_agrees_with_a_set_of_all_numbers_seen(numbers):
    ledger, seen, newest = _ledger(), set(), -1
    for number in numbers:
        newest = max(newest, number)
        fresh = number not in seen and number > newest - DeliveryLedger.WINDOW - 1
        code, _ = ledger.try_accept(_header(number))
        if newest - number < DeliveryLedger.WINDOW:
            assert (code == Reply.ACCEPTED) == fresh
        else:
            assert code == Reply.STALE
        seen.add(number)
        ledger.complete(_header(number), NO_EPISODES)


class SendersAndLedger(RuleBasedStateMachine):
    """An interleaving of sends, repeats, completions, failures and hellos, against a model."""

    WINDOW = 5

    def __init__(self):
        super().__init__()
        self._window, DeliveryLedger.WINDOW = DeliveryLedger.WINDOW, self.WINDOW
        self.life = 5 << CONNECTION_BITS
        self.incarnation = self.life + 1
        self.ledger = _ledger(incarnation=self.incarnation)
        self.running = []  # headers of accepted calls, of earlier incarnations too
        self.delivered = {}  # the answers, by message_key
        self.newest = {}  # the greatest number that was accepted, by stream_key
        self.failed = []  # headers of accepted calls that failed, until newer ones make them stale

    def teardown(self):
        DeliveryLedger.WINDOW = self._window

    def _expected(self, header):
        """Return the reply and answer that follow from all that happened."""
        key, newest = header.message_key, self.newest.get(header.stream_key, -1)
        if header.incarnation != self.incarnation:
            return Reply.DISPLACED, b""
        if key in [each.message_key for each in self.running]:
            return Reply.RUNNING, b""
        if key in self.delivered:
            return Reply.STALE, self.delivered[key] if header.number == newest else b""
        has_failed = key in [each.message_key for each in self.failed]
        if header.stream == UNROLLS and header.number <= newest - self.WINDOW and not has_failed:
            return Reply.STALE, b""  # too old to tell
        before = [header._replace(number=n).message_key for n in range(header.number)]
        if header.stream != UNROLLS and any(each not in self.delivered for each in before):
            return Reply.LOST, b""
        omitted = header.chunks == CONTENT_OMITTED
        return Reply.INCOMPLETE if omitted else Reply.ACCEPTED, b""

    @rule(
        stream=st.sampled_from([UNROLLS, 0, 1]),
        number=st.integers(0, 12),
        chunks=st.sampled_from([0, 0, CONTENT_OMITTED]),
        earlier=st.sampled_from([0, 0, 0, 1]),
    )
    def send(self, stream, number, chunks, earlier):
        header = _header(number, incarnation=self.incarnation - earlier, stream=stream)
        header = header._replace(chunks=chunks)
        reply = self.ledger.try_accept(header)
        assert reply == self._expected(header)
        if reply[0] == Reply.ACCEPTED:
            self.running.append(header)
            newest = self.newest.get(header.stream_key, -1)
            self.newest[header.stream_key] = max(newest, number)
            oldest = self.newest[header.stream_key] - self.WINDOW + 1
            self.failed = [
                each
                for each in self.failed
                if each.stream_key != header.stream_key
                or (each.number >= oldest and each.number != number)
            ]

    @rule(stream=st.sampled_from([0, 1]))
    def send_next_step(self, stream):
        newest = self.newest.get(_header(0, 3, self.incarnation, stream).stream_key, -1)
        self.send(stream, newest + 1, 0, 0)

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 20), answer=st.binary(min_size=1, max_size=2))
    def complete(self, which, answer):
        header = self.running.pop(which % len(self.running))
        answer = b"" if header.stream == UNROLLS else answer
        self.ledger.complete(header, NO_EPISODES, answer)
        assert header.message_key not in self.delivered
        self.delivered[header.message_key] = answer

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 20))
    def fail(self, which):
        self.failed.append(self.running.pop(which % len(self.running)))
        self.ledger.fail(self.failed[-1])

    @rule(new_process=st.booleans())
    def rejoin(self, new_process):
        self.life += new_process << CONNECTION_BITS
        self.incarnation = self.life + 1 if new_process else self.incarnation + 1
        assert self.ledger.join(3, self.incarnation)

    @rule(back=st.integers(0, 2))
    def hear_a_late_hello(self, back):
        assert not self.ledger.join(3, max(self.incarnation - back, self.life))

    @invariant()
    def every_message_arrived_at_most_once(self):
        arrived = [header.message_key for header in self.ledger._actors.arrived]
        assert len(set(arrived)) == len(arrived)


SendersAndLedger.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None
)
test_any_interleaving_accepts_each_message_once = SendersAndLedger.TestCase
