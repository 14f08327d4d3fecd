"""What other trainers call our flags: each answer names flags that exist."""

import dataclasses
import re

import pytest

from impala_mm.config import flags, peer_names
from impala_mm.config.algorithm_settings import BUILT_IN
from impala_mm.config.settings import Config
from launcher.plan.settings import LauncherConfig

OF_TRAINING = {f.name for name in BUILT_IN for f in dataclasses.fields(Config.of_algorithm(name))}
OURS = OF_TRAINING | {f.name for f in dataclasses.fields(LauncherConfig)}


def test_an_answer_names_flags_of_ours_and_the_name_is_none_itself():
    for name in peer_names._HERE:
        assert name not in OF_TRAINING
        named = re.findall(r"--(\w+)", peer_names.here(name))
        assert named, name
        assert set(named) <= OURS, name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gamma", "--discounting"),
        ("capture-video", "--mode=test --video_dir=FOLDER"),
        ("batchsize", "--batch_size"),
        ("teapot", "--help=WORD"),
    ],
)
def test_a_flag_that_does_not_exist_is_answered(name, said):
    assert said in flags.nearest(name, OURS)


def test_a_search_finds_a_flag_by_its_name_elsewhere():
    assert "gamma" in peer_names.of_flag("discounting").split()
    assert not peer_names.of_flag("epsilon_base")
    assert "start_e" not in peer_names.of_flag("epsilon").split(), "another flag's beginning"
