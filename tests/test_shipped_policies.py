"""Policies that come with this package: each plays as well as its card says, and weighs little."""

import re
import sys
from pathlib import Path

import pytest
from processes import ROOT, run

import impala_mm
from impala_mm.records import checkpoint

FOLDER = ROOT / "impala_mm" / "shipped_policies"
NAMES = checkpoint.shipped_names()
NEEDED = {"Pong": "ale_py", "Breakout": "ale_py", "Cheetah": "mujoco"}


def test_there_are_policies_and_they_weigh_10_mb_at_most():
    assert {"cartpole", "memory"} <= set(NAMES)
    assert sum(p.stat().st_size for p in FOLDER.rglob("*") if p.is_file()) < 10e6


@pytest.mark.parametrize("name", NAMES)
def test_a_card_says_what_the_policy_does_and_how_it_was_made(name):
    card = (FOLDER / name / "README.md").read_text()
    assert f"# {name}\n" in card
    assert re.search(r"100 games, most likely actions \| -?[\d.]+ ± [\d.]+ \|", card)
    assert re.search(r"\| commit \| [0-9a-f]{7,12} \|", card), "of code that is not changed"
    assert "| command | `python experiment.py " in card
    assert "Apache-2.0" in card
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", card):
        assert (FOLDER / name / picture).stat().st_size < 200_000
    assert "/work" not in (FOLDER / name / "about.json").read_text()
    assert f"`{name}`" in (ROOT / "sandbox" / "policies.md").read_text()


@pytest.mark.parametrize("name", [n for n in NAMES if n in {"cartpole", "memory"}])
def test_a_policy_plays_as_its_card_says(name):
    _check(name, 20)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"cartpole", "memory"}])
def test_a_larger_policy_plays_as_its_card_says(name):
    card = (FOLDER / name / "README.md").read_text()
    for word, package in NEEDED.items():
        if word in card:
            pytest.importorskip(package)
    _check(name, 5)


def _check(name, games):
    card = (FOLDER / name / "README.md").read_text()
    found = re.search(r"most likely actions \| (-?[\d.]+) ± ([\d.]+)", card)
    mean, deviation = map(float, found.groups())
    played = impala_mm.evaluate(name, games, deterministic=True)
    assert abs(played.mean - mean) <= 4 * deviation / games**0.5 + 1e-2


def test_a_folder_counts_more_than_a_policy_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "cartpole").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(impala_mm.errors.BadCheckpoint, match="cartpole is not the folder of a run"):
        impala_mm.load_policy("cartpole")  # a folder of that name counts more


def test_the_library_takes_a_name_and_says_the_nearest():
    with pytest.raises(impala_mm.errors.BadCheckpoint, match="did you mean memory"):
        impala_mm.load_policy("memry")
    assert Path(impala_mm.load_policy("memory").path).parent == FOLDER


OFFLINE = """
import sys

def refuse(event, arguments):
    assert event not in {"socket.connect", "socket.getaddrinfo", "socket.sendto"}, arguments

sys.addaudithook(refuse)
import impala_mm
print(impala_mm.evaluate("cartpole", num_episodes=2, deterministic=True).lengths)
"""


@pytest.mark.slow  # the other tests read the same files, without a look at the network
def test_a_policy_is_loaded_and_played_without_a_network():
    code, printed = run(sys.executable, "-c", OFFLINE)
    assert code == 0, printed
    assert printed.splitlines()[-1] == "[500, 500]"
