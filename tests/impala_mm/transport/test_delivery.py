"""Each message passes once, whatever the order and however often it is repeated."""

from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.transport.delivery import DeliveryLedger
from impala_mm.transport.messages import Reply


def test_each_sequence_number_passes_once_in_any_order():
    ledger = DeliveryLedger()
    ledger.join(3, incarnation=9)
    assert ledger.try_accept(3, 9, 0) == Reply.ACCEPTED
    assert ledger.try_accept(3, 9, 0) == Reply.RUNNING
    ledger.complete(3, 9, 0)
    assert ledger.try_accept(3, 9, 0) == Reply.STALE
    assert ledger.try_accept(3, 9, 2) == Reply.ACCEPTED, "a message may overtake another"
    assert ledger.try_accept(3, 9, 1) == Reply.ACCEPTED


def test_a_restarted_actor_starts_anew_and_its_old_process_is_told():
    ledger = DeliveryLedger()
    ledger.join(3, incarnation=9)
    ledger.try_accept(3, 9, 0)
    ledger.join(3, incarnation=4)
    assert ledger.try_accept(3, 4, 0) == Reply.ACCEPTED
    assert ledger.try_accept(3, 9, 1) == Reply.DISPLACED


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1500), max_size=60))
def test_the_ledger_agrees_with_a_set_of_all_numbers_seen(numbers):
    ledger, seen, newest = DeliveryLedger(), set(), -1
    ledger.join(0, 0)
    for number in numbers:
        newest = max(newest, number)
        fresh = number not in seen and number > newest - DeliveryLedger.WINDOW - 1
        code = ledger.try_accept(0, 0, number)
        if newest - number < DeliveryLedger.WINDOW:
            assert (code == Reply.ACCEPTED) == fresh
        else:
            assert code == Reply.STALE
        seen.add(number)
        ledger.complete(0, 0, number)
