"""Each message passes once, whatever the order and however often it is repeated."""

from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.transport.delivery import ACCEPTED, DISPLACED, RUNNING, STALE, DeliveryLedger


def test_each_sequence_number_passes_once_in_any_order():
    ledger = DeliveryLedger()
    ledger.join(3, incarnation=9)
    assert ledger.begin(3, 9, 0) == ACCEPTED
    assert ledger.begin(3, 9, 0) == RUNNING
    ledger.end(3, 9, 0)
    assert ledger.begin(3, 9, 0) == STALE
    assert ledger.begin(3, 9, 2) == ACCEPTED, "a message may overtake another"
    assert ledger.begin(3, 9, 1) == ACCEPTED


def test_a_restarted_actor_starts_anew_and_its_old_process_is_told():
    ledger = DeliveryLedger()
    ledger.join(3, incarnation=9)
    ledger.begin(3, 9, 0)
    ledger.join(3, incarnation=4)
    assert ledger.begin(3, 4, 0) == ACCEPTED
    assert ledger.begin(3, 9, 1) == DISPLACED


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1500), max_size=60))
def test_the_ledger_agrees_with_a_set_of_all_numbers_seen(numbers):
    ledger, seen, newest = DeliveryLedger(), set(), -1
    ledger.join(0, 0)
    for number in numbers:
        newest = max(newest, number)
        fresh = number not in seen and number > newest - DeliveryLedger.WINDOW - 1
        code = ledger.begin(0, 0, number)
        if newest - number < DeliveryLedger.WINDOW:
            assert (code == ACCEPTED) == fresh
        else:
            assert code == STALE
        seen.add(number)
        ledger.end(0, 0, number)
