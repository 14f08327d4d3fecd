"""Packages of environments: short ids, extras that install them, and a training on each."""

import tomllib

import pytest
from package_sets import with_package_index
from processes import EXPERIMENT, ROOT, free_port, run
from rows import read_rows

from impala_mm.environments.make import level_spec
from impala_mm.environments.packages import PACKAGES, module_of
from impala_mm.environments.types import BadLevel

READ = tomllib.loads((ROOT / "pyproject.toml").read_text())
SUITES = READ["tool"]["impala_mm"]["suites"]


def test_a_short_id_imports_the_module_that_registers_it(tmp_path, monkeypatch):
    package = tmp_path / "vizdoom"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "gymnasium_wrapper.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('VizdoomCart-v1', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert level_spec("VizdoomCart-v1").num_actions == 2
    with pytest.raises(BadLevel, match="does not register VizdoomCard-v1"):
        level_spec("VizdoomCard-v1")


@pytest.mark.parametrize(
    ("example", "needs"),
    [
        ("CrafterReward-v1", r"crafter: pip install 'impala_mm\[crafter\]'"),
        ("highway-fast-v0", r"highway_env: pip install 'impala_mm\[highway\]'"),
        ("Meta-World/MT1", r"metaworld: pip install 'impala_mm\[metaworld\]'"),
        ("BabyAI-GoToLocal-v0", r"minigrid: pip install 'impala_mm\[minigrid\]'"),
        ("NetHackScore-v0", r"nle: pip install 'impala_mm\[nethack\]'"),
        ("FetchReach-v4", r"gymnasium_robotics: pip install 'impala_mm\[robotics\]'"),
        ("VizdoomBasic-v1", r"vizdoom: pip install 'impala_mm\[vizdoom\]'"),
    ],
)
def test_an_id_of_a_package_that_is_missing_names_its_extra(example, needs, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadLevel, match=f"^{example} needs {needs}$"):
        module_of(example)


def test_every_package_has_an_extra_that_the_lock_leaves_out():
    extras = READ["project"]["optional-dependencies"]
    assert {package.extra for package in PACKAGES} <= set(SUITES) <= set(extras)
    assert module_of("CartPole-v1") == ""


@pytest.mark.slow
@pytest.mark.parametrize("extra", SUITES)
def test_an_extra_fits_into_one_environment_with_this_project(extra, tmp_path):
    code, printed = run(
        *(ROOT / ".venv/bin/uv", "pip", "compile", "--quiet", "--python-version=3.11"),
        *(f"--extra={name}" for name in (extra, "cpu", "environments", "launcher", "multi")),
        *(ROOT / "pyproject.toml", f"--output-file={tmp_path / 'locked.txt'}"),
        **with_package_index({}),
        limit=300,
    )
    assert code == 0, printed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("module", "preset"),
    [
        ("crafter", "crafter-ppo"),
        ("dm_control", "dmc-sac"),
        ("highway_env", "highway-ppo"),
        ("metaworld", "metaworld-sac"),
        ("minigrid", "minigrid-impala"),
        ("minigrid", "doorkey-ppo"),
        ("minigrid", "babyai-ppo"),
        ("nle", "nethack-impala"),
        ("gymnasium_robotics", "fetch-sac"),
        ("vizdoom", "vizdoom-ppo"),
    ],
)
def test_a_suite_is_trained_on_with_its_preset(module, preset, tmp_path):
    pytest.importorskip(module)
    code, printed = run(
        *EXPERIMENT,
        f"--preset={preset}",
        *("--total_environment_frames=6000", "--num_actors=1", f"--logdir={tmp_path}"),
        f"--learner_hosts=localhost:{free_port()}",
        limit=800,
    )
    assert code == 0, printed
    last = read_rows(tmp_path)[-1]
    assert last["updates"] >= 2
    assert not last.get("environment_faults")
