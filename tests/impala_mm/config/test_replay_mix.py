"""The text of --replay: what it means, and the sentences about what it cannot mean."""

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impala_mm.config import replay_mix


def _mix(text):
    return replay_mix.parse(replay_mix.rewrite(text))


def test_a_text_names_parts_with_shares_capacities_and_options():
    mix = _mix("uniform:0.3:10000,queue:0.5,elite:0.2:1000:strategy=1:distance=cosine")
    assert mix.queue[:4] == ("queue", 0.5, 0, {})
    assert [part[:3] for part in mix.replays] == [("uniform", 0.3, 10000), ("elite", 0.2, 1000)]
    options = mix.replays[1].options
    assert (options["strategy"], options["distance"], options["max_age"]) == ("1", "cosine", 100)
    assert mix.who_need("features") == ["elite"]
    assert _mix("queue:0.5,prioritised:0.5").who_need("features") == []
    assert replay_mix.split_columns(mix, 10) == [5, 3, 2]
    assert replay_mix.split_columns(_mix("uniform:1:50"), 8) == [0, 8]


@pytest.mark.parametrize(
    ("text", "ratio", "expected"),
    [
        ("queue:0.25,uniform:0.75:50", 0.0, 0.5),  # two new unrolls in each batch
        ("uniform:1:50", 0.0, 0.125),
        ("uniform:1:50", 4.0, 4.0),
    ],
)
def test_a_new_unroll_allows_updates_by_the_ratio_or_by_the_mix(text, ratio, expected):
    assert replay_mix.updates_per_unroll(_mix(text), 8, ratio) == expected


def test_a_file_of_tables_is_the_text_in_its_place(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(
        "queue = {share = 0.5}\n[prioritised]\nshare = 0.5\ncapacity = 64\nexponent = 0.9\n"
    )
    text = replay_mix.rewrite(f"{path}")
    assert text == "queue:0.5,prioritised:0.5:64:exponent=0.9"
    assert _mix(text).replays[0].options["exponent"] == 0.9


def test_a_kind_may_be_in_a_mix_more_than_once(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(
        "[[elite]]\nshare = 0.25\ncapacity = 64\n[[elite]]\nshare = 0.5\ncapacity = 99\n"
        "anneal = 2\n[uniform]\nshare = 0.25\n"
    )
    text = replay_mix.rewrite(f"{path}")
    assert text == "elite:0.25:64,elite:0.5:99:anneal=2,uniform:0.25"
    parts = _mix(text).replays
    assert [part.name for part in parts] == ["elite", "elite-2", "uniform"]
    assert [part.options.get("anneal") for part in parts] == [1, 2, None]
    assert "elite-2 has room for 99" in replay_mix.why_unsuitable(
        _mix("elite:0.25:200,elite:0.5:99,uniform:0.25"), 100, 0
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queue:1", "it names no replay"),
        ("queue:0.5,uniform:0.4", "the shares of its parts sum to 0.9"),
        ("replay:1", "there is no kind of replay 'replay'"),
        ("uniform:1:none", "uniform's capacity is none"),
        ("uniform:1:0", "uniform's capacity is 0"),
        ("uniform:1:1000000000", "up to 100,000,000"),
        ("uniform:nan", "uniform's share is nan"),
        ("queue:1,uniform:0:9", "uniform's share is 0"),
        ("uniform", "uniform: write KIND:SHARE:CAPACITY"),
        ("queue:1:10", "queue:1:10: write KIND:SHARE"),
        ("queue:0.5,queue:0.5", "it names queue twice"),
        ("elite:1:9:distance=l0.5", "elite's distance is l0.5: it must be cosine, kl, or l and"),
        ("elite:1:9:distance=3", "elite's distance is 3"),
        ("elite:1:9:anneal=-1", "elite's anneal is -1"),
        ("uniform:1:9:lambda=2", "uniform has no option lambda"),
        ("elite:1:9:strategy=5", "elite's strategy is 5"),
        ("elite:1:9:lambda=0", "elite's lambda is 0"),
        ("missing.toml", "the file cannot be read"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        _mix(text)


@pytest.mark.parametrize(
    ("text", "batch_size", "ratio", "said"),
    [
        ("queue:0.5,uniform:0.5:100", 8, 0, ""),
        ("queue:0.5,uniform:0.5:100", 8, 1, ""),
        ("uniform:1:100", 8, 0.01, ""),
        ("queue:0.5,uniform:0.5:7", 8, 0, "uniform has room for 7 unrolls, less than"),
        ("queue:0.5,uniform:0.5:100", 8, 0.1, "raise that to at least 0.25"),
        ("queue:0.5,uniform:0.5:100", 1, 0, "raise that to at least 2"),
        ("queue:0.5,uniform:0.3:99,elite:0.2:50", 32, 0, "uniform:0.3125:99,elite:0.1875:50"),
    ],
)
def test_a_mix_that_does_not_fit_the_other_flags_is_explained(text, batch_size, ratio, said):
    why = replay_mix.why_unsuitable(_mix(text), batch_size, ratio)
    assert said in why
    assert bool(said) == bool(why)


@settings(deadline=None)
@given(
    shares=st.lists(st.floats(0.01, 1), min_size=2, max_size=5),
    batch_size=st.integers(1, 300),
)
def test_the_nearest_shares_that_are_proposed_are_accepted(shares, batch_size):
    kinds = replay_mix.KINDS.names[: len(shares)]
    parts = [
        replay_mix.Part(kind, share / math.fsum(shares), 10_000 * (kind != "queue"), {})
        for kind, share in zip(kinds, shares, strict=True)
    ]
    mix = replay_mix.Mix(parts[0], tuple(parts[1:]))
    why = replay_mix.why_unsuitable(mix, batch_size, 0)
    if not why:
        return
    if "the nearest that do: " not in why:
        assert batch_size < len(parts)
        return
    proposed = _mix(why.split("the nearest that do: ")[1])
    columns = replay_mix.split_columns(proposed, batch_size)
    assert sum(columns) == batch_size
    for n, part in zip(columns, parts, strict=True):
        assert n >= 1
        assert abs(n - part.share * batch_size) <= len(parts)
