"""An export acts as the policy does, with TensorFlow alone; it appears complete or not at all."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from processes import run
from saved_run import save

from impala_mm.config.settings import Config
from impala_mm.data.trajectory import leaf_names
from impala_mm.jobs import export
from impala_mm.policy import exports, saved_model
from impala_mm.policy.policy import load_policy
from impala_mm.runtime import lifecycle

_STEPS, _GAMES = 4, 3

# A process with TensorFlow and the folder, and without this project.
_ELSEWHERE = """
import sys
for name in ("impala_mm", "nets", "launcher", "sonnet"):
    sys.modules[name] = None  # it cannot be imported
exec(open("example.py").read())
"""


def _given(policy):
    """Return made-up inputs of three games, of which the second one starts anew at step 2."""
    draws = np.random.default_rng(3)
    seen = policy.spec.observation
    shape = (_STEPS, _GAMES, *seen.shape)
    byte = seen.dtype == tf.uint8
    blocks = draws.integers(256, size=(_STEPS, _GAMES, 7, 7, 1)).astype(np.uint8)
    blocks = blocks.repeat(12, axis=2).repeat(12, axis=3)
    first = np.zeros((_STEPS, _GAMES), bool)
    first[0] = first[2, 1] = True
    return {
        "observation": blocks if byte else draws.normal(size=shape).astype(np.float32),
        "first": first,
        "last_action": draws.integers(policy.spec.num_actions, size=first.shape).astype(np.int32),
        "last_reward": draws.normal(0, 2, first.shape).astype(np.float32),
    }


@pytest.mark.slow
def test_elsewhere_an_exports_example_runs(tmp_path):
    save(tmp_path, level_name="memory", agent_name="MLPLSTMAgent")
    code, printed = run(sys.executable, "experiment.py", "--mode=export", f"--logdir={tmp_path}")
    assert code == 0, printed
    assert f"cd {tmp_path}/export && " in printed
    code, printed = run(sys.executable, "-I", "-c", _ELSEWHERE, cwd=tmp_path / "export")
    assert code == 0, printed


def _made(folder):
    folder.mkdir()
    return folder


def _write(target, content, end=None):
    with exports.replace(target) as work:
        (work / "saved_model.pb").write_text(content)
        if end:
            raise end


def test_a_saved_model_of_another_program_is_not_replaced(tmp_path):
    for name in ("variables", "assets"):
        (tmp_path / name).mkdir()
    for name in ("saved_model.pb", "fingerprint.pb"):
        (tmp_path / name).touch()
    assert "of another program" in exports.why_not_replaceable(tmp_path)
    (tmp_path / "signature.json").touch()
    assert not exports.why_not_replaceable(tmp_path), "an export"


def test_an_export_that_fails_or_was_killed_leaves_what_was_there_and_nothing_else(tmp_path):
    target = tmp_path / "export"

    def left():
        assert [path.name for path in tmp_path.iterdir()] == ["export"]
        return [path.read_text() for path in target.iterdir()]

    with pytest.raises(SystemExit):
        _write(target, "half", SystemExit(130))
    assert not list(tmp_path.iterdir())
    _write(target, "old")
    with pytest.raises(OSError, match="disk"):
        _write(target, "half", OSError("disk"))
    assert left() == ["old"]
    target.rename(tmp_path / ".export.before")  # a killed one had put it aside
    (_made(tmp_path / ".export.writing") / "saved_model.pb").write_text("half")
    with pytest.raises(OSError, match="disk"):
        _write(target, "half", OSError("disk"))
    assert left() == ["old"]
    (target / "fingerprint.pb").touch()
    _write(target, "new")
    assert left() == ["new"], "replaced whole"


@pytest.fixture
def in_this_process(monkeypatch):
    """Let this process keep its signals and its TensorFlow."""
    monkeypatch.setattr(lifecycle, "handle_end_signals", lambda handler: None)
    monkeypatch.setattr(lifecycle, "load_tensorflow", lambda *_: None)


@pytest.mark.parametrize(("given", "different"), [(["eval_epsilon"], True), ([], False)])
@pytest.mark.usefixtures("in_this_process")
def test_an_export_has_the_share_of_random_actions_that_is_given(tmp_path, given, different):
    save(tmp_path, sure=True, algorithm="dqn", level_name="catch")
    with pytest.raises(SystemExit) as ended:
        export.run(Config(mode="export", logdir=str(tmp_path), eval_epsilon=1.0), given)
    assert ended.value.code == 0
    act = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    inputs = {
        name: tf.ones([50, *spec.shape[1:]], spec.dtype)
        for name, spec in act.structured_input_signature[1].items()
    }
    counts = np.bincount(act(**inputs)["action"].numpy(), minlength=3)
    # The usual share is 0.001.
    assert (counts.max() < 40) if different else (counts.max() >= 48), counts


@pytest.mark.parametrize(
    "flags",
    [
        {"level_name": "memory", "agent_name": "MLPLSTMAgent"},
        {"level_name": "PongNoFrameskip-v4", "agent_name": "ShallowConvAgent"},
        {"algorithm": "r2d2", "level_name": "memory", "value_rescaling": 0.1},
        {"algorithm": "dqn", "level_name": "catch", "value_distribution": "quantiles"},
    ],
)
def test_an_export_does_what_the_policy_does(tmp_path, flags):
    save(tmp_path / "run", sure=True, **flags)
    policy = load_policy(tmp_path / "run")
    saved_model.write_saved_model(policy, _made(tmp_path / "export"))
    agent = tf.saved_model.load(str(tmp_path / "export")).signatures
    kept = agent["initial_state"](tf.constant(_GAMES)) if "initial_state" in agent else {}
    state, given, values = policy.initial_state(_GAMES), _given(policy), []
    for t in range(_STEPS):
        inputs = {name: value[t] for name, value in given.items()}
        entry = policy.entry(*map(inputs.get, "observation last_reward last_action first".split()))
        flat = {name: tf.constant(x) for name, x in inputs.items()} | kept
        found = agent["serving_default"](exploration=tf.zeros([_GAMES]), **flat)
        judged = policy.judge(entry, state)
        action, state, _ = policy.step(entry, state, explore=False)
        if "values" in found:
            expected = {"values": judged.values, "value": np.max(judged.values, -1)}
        else:
            expected = {"policy": judged.policy, "value": judged.value, "action": action}
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
        kept = {name: x for name, x in found.items() if name.startswith("state")}
        values.append(expected["value"])
    assert np.std(values, axis=0).max() > 0.01, "the value should depend on what is seen"
    described = json.loads((tmp_path / "export" / "signature.json").read_text())
    outputs = described["signatures"]["serving_default"]["outputs"]
    assert kept.keys() == {name for name in outputs if name.startswith("state")}
    if flags["level_name"].startswith("Pong"):
        assert described["actions"][:3] == ["NOOP", "FIRE", "RIGHT"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({}, "--mode=export needs --logdir"),
        ({"checkpoint": "c"}, "--checkpoint needs --export_dir"),
        ({"logdir": "{}/none"}, "--logdir: {}/none does not exist"),
        ({"logdir": "{}"}, "--logdir: {} is not the folder of a run"),
        ({"logdir": "{}", "job_name": "actor"}, "leave --job_name=actor out"),
        ({"logdir": "{}", "export_dir": "{}/photos"}, "--export_dir={}/photos: it holds holiday"),
        ({"logdir": "{}", "export_dir": "{}/file"}, "--export_dir={}/file: it is a file"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_what_cannot_be_exported_is_refused_in_one_sentence(tmp_path, capsys, flags, said):
    (_made(tmp_path / "photos") / "holiday.jpg").touch()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    config = Config(mode="export", **{n: v.replace("{}", str(tmp_path)) for n, v in flags.items()})
    with pytest.raises(SystemExit) as ended:
        export.run(config, list(flags))
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said.replace("{}", str(tmp_path)) in printed
    assert len(printed.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_states_are_named_by_their_path_in_the_order_of_the_nest_and_told_apart():
    state = {"b": (1, [2]), "a": ((), 3)}
    assert leaf_names(state, "state") == ["state_a_1", "state_b_0", "state_b_1_0"]
    assert leaf_names(0, "state") == ["state"]
    assert leaf_names({"a-b": 1, "a_b": 2, "a": {"b": 3}}, "s") == ["s_a_b", "s_a_b_2", "s_a_b_3"]
