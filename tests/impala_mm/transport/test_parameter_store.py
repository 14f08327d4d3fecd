"""The parameters for actors stay complete while they are read, and bounded whoever reads."""

from impala_mm.transport import parameter_store
from impala_mm.transport.parameter_store import ParameterStore


def test_readers_that_begin_and_never_go_on_keep_a_bounded_number_of_versions(monkeypatch):
    monkeypatch.setattr(parameter_store, "_MOST_VERSIONS", 5)
    monkeypatch.setattr(parameter_store, "_MOST_READERS", 20)
    store = ParameterStore(2)
    for version in range(50):
        store.publish(version, lambda: b"12345")
        for reader in range(3):
            assert store.read(None, 0, 100 * version + reader).content == b"12"
    assert len(store._versions) <= 6
    assert len(store._readers) <= 20


def test_one_that_goes_on_gets_its_version_to_the_end():
    store = ParameterStore(2)
    store.publish(1, lambda: b"12345")
    assert store.read(None, 0, 7).content == b"12"
    store.publish(2, lambda: b"abcde")
    assert store.read(1, 2, 7).content == b"34"
    assert store.read(1, 4, 7).content == b"5"
    store.publish(3, lambda: b"ABCDE")
    assert store.read(1, 0, 7) is None


def test_a_part_before_the_beginning_is_none():
    store = ParameterStore(2)
    store.publish(1, lambda: b"12345")
    assert store.read(None, -1, 7) is None
    assert store.read(None, 2**62, 7).content == b""
