"""Pickles are read as Python reads them, and nothing that they ask for is executed."""

import collections
import contextlib
import os
import pickle
import struct
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from impala_mm.teachers import pickles
from impala_mm.teachers.teacher import NoTeacher

_keys = st.one_of(
    st.text(), st.binary(), st.booleans(), st.none(), st.integers(-(2**59), 2**59), st.floats(-1, 1)
)
_leaves = st.one_of(_keys, st.integers(), st.floats(allow_nan=False), st.binary(max_size=300))
_plain = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(_keys, inner),
        st.sets(_keys),
        st.frozensets(_keys),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: [items, items, *items]),
    ),
    max_leaves=8,
)


@settings(max_examples=25)
@given(_plain, st.sampled_from([4, 5]))
def test_containers_are_read_as_python_reads_them(value, protocol):
    content = pickle.dumps(value, protocol)
    found = pickles.interpret(content, "a file")
    assert found == value
    assert repr(found) == repr(pickle.loads(content))


@settings(max_examples=25)
@given(
    st.recursive(
        st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()),
        lambda inner: st.one_of(
            st.lists(inner), st.tuples(inner, inner), st.dictionaries(st.text(), inner)
        ),
    ),
    st.sampled_from([0, 1, 2, 3]),
)
def test_older_protocols_are_read_as_python_reads_them(value, protocol):
    assert pickles.interpret(pickle.dumps(value, protocol), "a file") == value


_shapes = arrays.array_shapes(min_dims=0, min_side=0, max_side=4)
_types = st.sampled_from(["<f4", ">f8", "f2", "|i1", "u1", "<i8", ">u2", "?"])


@settings(max_examples=25)
@given(_types.flatmap(lambda kind: arrays.arrays(kind, _shapes)), st.sampled_from([2, 3, 4, 5]))
def test_arrays_and_numbers_of_numpy_are_read(array, protocol):
    turned = np.asfortranarray(array)
    numbers = [array.flat[0]] if array.size else []
    content = pickle.dumps([array, turned, array, *numbers], protocol)
    if b"_codecs" in content:  # protocol 2 has no bytes
        with pytest.raises(NoTeacher, match=r"has the name '_codecs.encode'"):
            pickles.interpret(content, "a file")
        return
    found = pickles.interpret(content, "a file")
    assert found[0] is found[2]
    for one, other in zip(found, pickle.loads(content), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_an_unchanged_recursive_list_is_read():
    value = []
    value.append(value)
    found = pickles.interpret(pickle.dumps(value), "a file")
    assert found[0] is found


# -- what is refused


class _Calls:
    """An object that calls a function when Python unpickles it."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


class _Instance:
    pass


def _of(*instructions):
    return b"".join([b"\x80\x04", *instructions, b"."])


def _text(text):
    return b"\x8c" + bytes([len(text)]) + text


_TOUCH = _text(b"touch ran")
_HOSTILE = {
    "global and reduce": (b"cos\nsystem\n(S'touch ran'\ntR.", "'os.system'"),
    "stack_global": (_of(_text(b"os"), _text(b"system"), b"\x93", _TOUCH, b"\x85R"), "'os.system'"),
    "exec": (pickle.dumps(_Calls(exec, "open('ran', 'w')"), 2), "'__builtin__.exec'"),
    "getattr": (pickle.dumps(_Calls(getattr, 1, "real")), "'builtins.getattr'"),
    "inst": (b"(S'touch ran'\nios\nsystem\n.", "the instruction INST"),
    "obj": (_of(b"(", b"cos\nsystem\n", _TOUCH, b"o"), "'os.system'"),
    "obj of a known name": (_of(b"(", b"cnumpy\nndarray\n", b"o"), "the instruction OBJ"),
    "newobj": (_of(b"csubprocess\nPopen\n", _TOUCH, b"\x85\x81"), "'subprocess.Popen'"),
    "newobj_ex": (_of(b"cnumpy\nndarray\n", b")}\x92"), "the instruction NEWOBJ_EX"),
    "an instance": (pickle.dumps(_Instance()), "_Instance"),
    "build of an array": (_of(b"cnumpy\nndarray\n", b"}b"), "a state of dict for Name"),
    "extension": (_of(b"\x82\x01"), "the instruction EXT1"),
    "binary persistent id": (_of(_TOUCH, b"Q"), "the instruction BINPERSID"),
    "a buffer of another": (b"\x80\x05\x97.", "the instruction NEXT_BUFFER"),
    "numpy's file": (_of(b"cnumpy\nload\n", _TOUCH, b"\x85R"), "'numpy.load'"),
    "an attribute of a known one": (
        _of(_text(b"numpy"), _text(b"ndarray.tofile"), b"\x93"),
        "'numpy.ndarray.tofile'",
    ),
    "another call of a known one": (
        _of(b"cnumpy\nndarray\n", b"K\x05\x85", b"R"),
        "a call of the name 'numpy.ndarray' as its program does not call it",
    ),
    "objects in an array": (pickle.dumps(np.array([None, {}])), "an array of type 'O8'"),
    "records in an array": (pickle.dumps(np.zeros(2, "f4,i4")), "an array of type 'V8'"),
    "many fields": (
        _of(b"cnumpy\ndtype\n", _text(b"i4," * 60), b"\x89\x88\x87R"),
        "an array of type 'i4,i4,i4,i4,i4,i4,i4'",
    ),
    "a key of another object": (
        _of(b"}", b"coptax\nadam\n".replace(b"optax", b"optax.x"), b")R", b"K\x01", b"s"),
        "damaged",
    ),
}


@pytest.mark.parametrize("kind", _HOSTILE)
def test_nothing_of_a_hostile_pickle_is_executed(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = _HOSTILE[kind]
    path = tmp_path / "ckpt.3"
    path.write_bytes(content)
    with pytest.raises(NoTeacher) as refused:
        pickles.read(path)
    message = str(refused.value)
    assert message.startswith(f"{path} ")
    assert said in message
    assert "\n" not in message
    if "damaged" not in said:
        assert "nothing of this file is executed and it is not read: give the" in message
    assert os.listdir() == ["ckpt.3"]


_NESTED_TUPLES = b")" + b"2\x86" * 60  # its hash would take 2^60 steps
_BOMBS = {
    "a long number": b"\x8b\xff\xff\xff\x7f\x01",
    "long bytes": b"\x8e" + struct.pack("<Q", 2**62) + b"a",
    "a long array of bytes": b"\x96" + struct.pack("<Q", 2**40),
    "a long text": b"\x8d" + struct.pack("<Q", 2**63),
    "a frame": b"\x95" + struct.pack("<Q", 2**62),
    "a key of nested tuples": b"}" + _NESTED_TUPLES + b"Ns",
    "an item of nested tuples": b"\x8f(" + _NESTED_TUPLES + b"\x90",
    "many lists": b"]" * 200_000,
    "many marks": b"(" * 200_000,
    "nested lists": b"]" * 5000 + b"a" * 200_000,
    "numbers with one hash": b"}("
    + b"".join(b"\x8a\x0a" + (7 + k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(9))
    + b"u",
    "many digits": b"L" + b"9" * 100_000 + b"L\n",
    "a large place in the memo": b"Nr\xff\xff\xff\xff" * 2,
    "an array of a huge shape": b"cnumpy.core.multiarray\n_reconstruct\n"
    b"cnumpy\nndarray\nK\x00\x85C\x01b\x87R(K\x01\x8a\x06" + b"\xff" * 5 + b"\x7f\x85"
    b"cnumpy\ndtype\n\x8c\x02f4\x89\x88\x87R\x89C\x04aaaatb",
    "an array of a shape of long numbers": b"cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R\x940"
    b"cnumpy.core.numeric\n_frombuffer\n(C\x01ah\x00("
    + (b"\x8b" + struct.pack("<i", 2_000_000) + b"\xff" * 1_999_999 + b"\x7f\x94")
    + b"h\x01" * 31
    + b"t\x8c\x01CtR",
    "one content for many arrays": b"C\xffa"
    + b"a" * 254
    + b"\x94"
    + b"0cnumpy\ndtype\n\x8c\x02u1\x89\x88\x87R\x940"
    + b"cnumpy.core.numeric\n_frombuffer\n\x940"
    + b"h\x02(h\x00h\x01M\xff\x00\x85\x8c\x01CtR0" * 100,
    "one list for many sets": b"]("
    + b"K\x01" * 1000
    + b"e\x940"
    + b"cbuiltins\nset\nh\x00\x85R" * 900,
}


@pytest.mark.parametrize("kind", _BOMBS)
def test_a_hostile_pickle_takes_neither_memory_nor_time(kind, monkeypatch):
    monkeypatch.setattr(pickles, "_MOST_INSTRUCTIONS", 50_000)
    content = b"\x80\x04" + _BOMBS[kind] + b"."
    tracemalloc.start()
    begun = time.monotonic()
    with pytest.raises(NoTeacher):
        pickles.interpret(content, "a file")
    seconds, (_, peak) = time.monotonic() - begun, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50_000 * 400 + 10 * len(content)
    assert seconds < 30


def test_a_file_that_is_too_large_or_gone_is_not_opened(tmp_path):
    path = tmp_path / "ckpt.3"
    with open(path, "wb") as file:
        file.truncate(2**31 + 1)
    with pytest.raises(NoTeacher, match=r"has 2,147,483,649 bytes, and pickles of at most"):
        pickles.read(path)
    with pytest.raises(NoTeacher, match=r"ckpt.4 cannot be read: No such file"):
        pickles.read(tmp_path / "ckpt.4")


_examples = [
    pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": [1, (2, "c")], "d": b"e"}),
    pickle.dumps([{"x": 1.5}, {"x": _Calls(os.system, "touch ran")}, collections.OrderedDict(a=1)]),
    pickle.dumps({1, 2, 3}, 3),
    _HOSTILE["newobj"][0],
]


@given(
    st.sampled_from(_examples),
    st.lists(st.tuples(st.integers(0, 300), st.binary(max_size=4), st.integers(0, 4)), max_size=8),
)
def test_mutations_are_read_or_refused_and_nothing_is_imported(example, changes):
    content = example
    for place, new, removed in changes:
        content = content[:place] + new + content[place + removed :]
    before = set(sys.modules)
    with contextlib.suppress(NoTeacher):
        pickles.interpret(content, "a file")
    assert set(sys.modules) == before
    assert not os.path.exists("ran")


@pytest.mark.parametrize("size", [0, 12, 39])
def test_a_truncated_pickle_is_refused_as_damaged(size):
    content = pickle.dumps({"some": np.arange(3), "more": [1, 2]})
    with pytest.raises(NoTeacher, match="is damaged, cut short or not a pickle"):
        pickles.interpret(content[: -size - 1], "a file")
