"""Damage to files as disks, crashes and other versions of a program do it, for hypothesis."""

import json
from typing import Any

from hypothesis import strategies as st

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw the content cut off, empty, longer, or with some bytes changed."""
    how = draw(st.sampled_from(["cut", "append", "change", "replace"]))
    position = draw(st.integers(0, max(len(content) - 1, 0)))
    more = draw(st.binary(min_size=1, max_size=30))
    if how == "cut":
        return content[:position]
    if how == "append":
        return content + more
    if how == "replace":
        return more
    return content[:position] + more + content[position + len(more) :]


@st.composite
def damaged_json(draw: st.DrawFn, content: bytes) -> bytes:
    """Draw a file of JSON that is damaged, or in which one value has become any other or none."""
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(content))
    whole = json.loads(content)
    paths = list(_paths(whole))
    *above, last = draw(st.sampled_from(paths)) if paths else [None]
    if last is None:
        return json.dumps(draw(ANY_JSON)).encode()
    at = whole
    for step in above:
        at = at[step]
    if draw(st.booleans()):
        del at[last]
    else:
        at[last] = draw(ANY_JSON)
    return json.dumps(whole).encode()


def _paths(value: Any, above: tuple = ()) -> Any:
    """Yield the path of each value within another, and (None,) for the whole."""
    if not above:
        yield (None,)
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield (*above, key)
        yield from _paths(value[key], (*above, key))
