"""Exports for NumPy and ONNX play as the policy does, where nothing but their packages is there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from saved_run import save

import impala_mm
from impala_mm.jobs import export
from impala_mm.policy import exports, same_answers, signatures
from impala_mm.policy.policy import load_policy
from impala_mm.runtime import lifecycle

# A process that finds no packages but those in a folder. It answers the steps in given.npz, each
# with the state that came out of the step before, and writes the answers to found.npz.
_BARE = """
import sys
sys.path[:0] = [{folder!r}, {packages!r}]
try:
    import tensorflow
except ImportError:
    import numpy as np
else:
    sys.exit("TensorFlow is there")
file = np.load({folder!r} + "/given.npz")
steps = [{{n.split(":")[1]: file[n] for n in file if n.startswith(f"{{t}}:")}} for t in range(3)]
answers = {{}}
{begin}
for t, given in enumerate(steps):
{step}
    answers.update({{f"{{t}}:{{name}}": x for name, x in {{**out, **state}}.items()}})
np.savez({folder!r} + "/found.npz", **answers)
"""
_NUMPY = (
    "import policy\nagent = policy.load({folder!r})\nstate = agent.initial_state(3)",
    "    out, state = agent.act(state, **given)",
)
_ONNX = (
    "import onnxruntime\nagent = onnxruntime.InferenceSession({folder!r} + '/policy.onnx')\n"
    "names = [x.name for x in agent.get_outputs()]\n"
    "state = {{x.name: np.zeros([3, *x.shape[1:]], dict(float=np.float32).get("
    "x.type[7:-1], x.type[7:-1])) for x in agent.get_inputs() if x.name.startswith('state')}}",
    "    out = dict(zip(names, agent.run(names, {{**given, **state}})))\n"
    "    state = {{name: out.pop('next_' + name) for name in state}}",
)
_PROGRAMS = {"numpy": _NUMPY, "onnx": _ONNX}
_PACKAGES = {"numpy": ["numpy"], "onnx": ["numpy", "onnxruntime"]}
needs_onnx = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("tf2onnx", "onnx", "onnxruntime"))),
    reason="tf2onnx and onnxruntime are not installed",
)
FORMATS = ["numpy", pytest.param("onnx", marks=needs_onnx)]
POLICIES = {
    "recurrent": {"level_name": "memory", "agent_name": "MLPLSTMAgent"},
    "attention": {"level_name": "memory", "agent_name": "MLPGTrXLAgent"},
    "numbers": {"level_name": "Pendulum-v1", "algorithm": "ppo"},
    "values": {"level_name": "catch", "algorithm": "dqn", "value_distribution": "quantiles"},
    "masks": {"level_name": "sandbox.small_games:TicTacToe-v0"},
    "frames": {
        "level_name": "PongNoFrameskip-v4", "agent_name": "ShallowConvLSTMAgent",
        "frame_stack": 2,
    },
}  # fmt: skip

OTHERS, SLOW = ["attention", "numbers", "values", "masks"], pytest.mark.slow


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    """Return a function that makes one of POLICIES, once."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            save(folder, sure=True, **POLICIES[name])
            made[name] = load_policy(folder)
        return made[name]

    return make


def _play(folder, export_format, given, tmp_path):
    """Return a bare process's answers to the steps of three games."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in _PACKAGES[export_format]:
        (path,) = importlib.util.find_spec(name).submodule_search_locations
        for each in (path, f"{path}.libs"):
            if Path(each).exists():
                (packages / Path(each).name).symlink_to(each)
    flat = {f"{t}:{name}": x for t, step in enumerate(given) for name, x in step.items()}
    np.savez(folder / "given.npz", **flat)
    begin, step = _PROGRAMS[export_format]
    names = {"folder": str(folder), "packages": str(packages)}
    text = _BARE.format(begin=begin.format(**names), step=step.format(**names), **names)
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    with np.load(folder / "found.npz") as file:
        found = dict(file)
    return [
        {n.partition(":")[2]: x for n, x in found.items() if n.startswith(f"{t}:")}
        for t in range(len(given))
    ]


def _given(policy):
    """Return three steps of three games, of which the second begins anew at the last step."""
    random, steps = np.random.default_rng(5), []
    specs = signatures.act(policy, explores=False).inputs
    for t in range(3):
        step = {}
        for name, spec in specs.items():
            shape = [3, *spec.shape[1:]]
            if name.startswith("state"):
                continue
            if spec.dtype.is_floating:
                step[name] = random.normal(size=shape).astype(np.float32)
            else:
                most = 256 if spec.dtype == tf.uint8 else 2
                numbers = random.integers(most, size=shape)
                step[name] = numbers.astype(spec.dtype.as_numpy_dtype)
            if name == "action_mask":
                step[name][:, 0] = True
        step["first"] = np.array([t == 0, t in (0, 2), t == 0])
        steps.append(step)
    return steps


@pytest.mark.parametrize(
    ("name", "export_format"),
    [
        *(("recurrent", "numpy"), ("frames", "numpy")),
        *(pytest.param(n, "numpy", marks=SLOW) for n in OTHERS),
        *(pytest.param(n, "onnx", marks=[needs_onnx, SLOW]) for n in POLICIES),
    ],
)
def test_a_bare_process_plays_as_the_policy_does(policies, name, export_format, tmp_path):
    policy, folder = policies(name), tmp_path / "export"
    policy.export(folder, export_format)
    described = json.loads((folder / "signature.json").read_text())
    assert set(described["signatures"]) == {
        "numpy": {"act", "initial_state"}, "onnx": {"policy.onnx"},
    }[export_format]  # fmt: skip
    given = _given(policy)
    answers = _play(folder, export_format, given, tmp_path)
    state = policy.initial_state(3)
    for step, found in zip(given, answers, strict=True):
        last = policy.spec.actions.from_environment_units(tf.constant(step["last_action"]))
        entry = policy.entry(
            step["observation"], step["last_reward"], last, step["first"],
            step.get("action_mask", ()),
        )  # fmt: skip
        judged = policy.judge(entry, state)
        action, state, _ = policy.step(entry, state, explore=False)
        right = {"policy": judged.policy, "value": judged.value}
        right |= {} if judged.values is None else {"values": judged.values}
        right["action"] = policy.spec.actions.in_environment_units(tf.constant(action))
        right |= signatures.named(state, "state")
        assert found.keys() == right.keys()
        for output, expected in right.items():
            np.testing.assert_allclose(found[output], expected, 1e-4, 1e-5, err_msg=output)
        if "action_mask" in step:
            assert step["action_mask"][np.arange(3), found["action"]].all()


@pytest.mark.parametrize("export_format", FORMATS)
def test_an_export_of_another_format_is_replaced_and_its_example_runs(
    policies, export_format, tmp_path
):
    policy, folder = policies("recurrent"), tmp_path / "export"
    policy.export(folder, export_format)
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    policy.export(folder)
    assert not list(folder.glob("policy.*"))


def _loaded(folder):
    """Return the policy of a folder of NumPy's format, in this process."""
    spec = importlib.util.spec_from_file_location("exported", folder / "policy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(seed=3)


def test_numpy_draws_actions_with_their_probabilities_where_it_explores(policies, tmp_path):
    policy = policies("recurrent")
    policy.export(tmp_path / "export", "numpy")
    agent, games = _loaded(tmp_path / "export"), 2000
    given = {name: np.repeat(x[:1], games, 0) for name, x in _given(policy)[0].items()}
    out, _ = agent.act(agent.initial_state(games), exploration=np.ones(games), **given)
    share = out["policy"][0, 1]
    assert 0.02 < share < 0.98
    assert abs(out["action"].mean() - share) < 5 * (share * (1 - share) / games) ** 0.5
    likely, _ = agent.act(agent.initial_state(games), **given)
    assert (likely["action"] == (share > 0.5)).all()


def test_wrong_inputs_of_numpys_policy_are_named(policies, tmp_path):
    policy = policies("recurrent")
    policy.export(tmp_path / "export", "numpy")
    agent = _loaded(tmp_path / "export")
    for changes, error, said in (
        ({"first": None}, TypeError, "missing: {'first'}"),
        ({"reward": np.zeros(3)}, TypeError, "wrong or missing: {'reward'}"),
        ({"last_reward": np.zeros(2)}, ValueError, r"last_reward has the shape \(2,\), not \(3,\)"),
        ({"last_action": np.full(3, 0.5)}, TypeError, "last_action is float64, not int32"),
    ):
        given = {n: x for n, x in (_given(policy)[0] | changes).items() if x is not None}
        with pytest.raises(error, match=said):
            agent.act(agent.initial_state(3), **given)


def test_other_outputs_than_tensorflows_are_refused(policies):
    policy = policies("recurrent")
    step = signatures.act(policy, explores=False)

    def right(given):
        found = step.function(**{name: tf.constant(x) for name, x in given.items()})
        return {name: x.numpy() for name, x in found.items()}

    same_answers.check(policy, right, "it")
    state, *_ = (name for name in step.function.structured_outputs if name.startswith("state"))
    for name, change in (("value", 1e-3), ("action", 1), (state, 1e-3)):

        def wrong(given, name=name, change=change):
            found = right(given)
            return found | {name: found[name] + np.array(change, found[name].dtype)}

        with pytest.raises(exports.CannotExport, match=f"it computes .*{name} differs"):
            same_answers.check(policy, wrong, "it")


@pytest.fixture
def in_this_process(monkeypatch):
    """Let this process keep its signals and its TensorFlow."""
    monkeypatch.setattr(lifecycle, "handle_end_signals", lambda handler: None)
    monkeypatch.setattr(lifecycle, "load_tensorflow", lambda *_: None)


@pytest.mark.parametrize(
    ("export_format", "said"),
    [
        ("numpie", "there is no format of exports 'numpie'; did you mean numpy?"),
        ("onnx", "it needs the package tf2onnx"),
        ("numpy", "NumPy has no translation of this policy's operation Cumsum"),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_formats_that_cannot_be_written_are_refused_in_one_sentence(
    policies, tmp_path, capsys, monkeypatch, export_format, said
):
    policy = policies("recurrent")
    monkeypatch.setitem(sys.modules, "tf2onnx", None)  # it cannot be imported
    original = type(policy.algorithm).judge

    def judge(algorithm, entry, state):
        output = original(algorithm, entry, state)
        return output._replace(value=tf.cumsum(output.value))

    monkeypatch.setattr(type(policy.algorithm), "judge", judge)
    config = policy.config.__class__(
        mode="export", checkpoint=str(policy.path), export_dir=str(tmp_path / "new"),
        export_format=export_format,
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        export.run(config, [])
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert len(printed.splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing is left"
    with pytest.raises(impala_mm.errors.BadSettings, match=r"there is no|tf2onnx|Cumsum"):
        policy.export(tmp_path / "new", export_format)
