"""Files of experiments: what they say, and how each mistake in one is refused."""

import pytest

from impala_mm.config import command_line
from impala_mm.config.settings import Config
from launcher.experiments import file
from launcher.experiments.search import SEARCHES
from launcher.plan.request import Request, UserError
from launcher.plan.settings import LauncherConfig

KINDS = {name: SEARCHES[name].OPTIONS for name in ("grid", "random")}
SWEEP = """
preset = "classic-ppo"
total_environment_frames = 2e4
[axes]
seed = [1, 2, 3]
learning_rate = {log_uniform = [1e-5, 1e-2]}
[search]
trials = 5
[needs]
actors = 3
"""


def read(tmp_path, text, *arguments):
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    argv = ["run", f"--experiment={path}", *arguments]
    (launcher, config), given = command_line.parse(argv, "", LauncherConfig, Config)
    return file.read(Request(launcher, config, given), KINDS)


def test_the_command_line_takes_precedence_and_the_preset_stays_a_preset(tmp_path):
    found = read(tmp_path, SWEEP, "--total_environment_frames=100", "--batch_size=4")
    assert found.base == {
        "preset": "classic-ppo",
        "total_environment_frames": 100,
        "batch_size": 4,
    }
    assert (found.kind, found.trials, found.needs.actors) == ("random", 5, 3)
    assert str(found.folder) == "runs/sweep"
    settings = found.check({"seed": 3, "learning_rate": 0.5})
    assert (settings.seed, settings.learning_rate, settings.epochs) == (3, 0.5, 10)
    drawn = [found.draw(n) for n in range(200)]
    assert drawn == [found.draw(n) for n in range(200)]
    rates = sorted(each["learning_rate"] for each in drawn)
    assert rates[0] >= 1e-5
    assert rates[-1] <= 1e-2
    assert 1e-4 < rates[100] < 1e-3  # the middle of the logarithms is at 3e-4


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("total_env", "total_enw", "there is no flag --total_enwironment_frames; did you mean --t"),
        ("learning_rate", "lerning_rate", "there is no flag --lerning_rate; did you mean --learn"),
        ("[1, 2, 3]", "[1, -2]", "--seed=-2: it must be at least 0"),
        ("[1, 2, 3]", "[]", "seed has no values"),
        ("[1, 2, 3]", "[1, 2, 1]", "seed has 1 twice"),
        ("[1, 2, 3]", "{uniform = [1, 9]}", "needs a whole number"),
        ("seed =", "restart_learners =", "restart_learners can be no axis: no learner has it"),
        ("[1, 2, 3]", "3", "seed = 3: an axis is a list of values"),
        ("log_uniform", "log_unifrm", "there is no kind 'log_unifrm'; did you mean log_uniform?"),
        ("[1e-5, 1e-2]", "[0, 1e-2]", "log_uniform begins above 0"),
        ("[1e-5, 1e-2]", "[1e-2, 1e-5]", "takes two numbers, the lowest one first"),
        ("trials = 5", 'kind = "rondom"', "there is no kind 'rondom'; did you mean random?"),
        ("trials = 5", "trails = 5", "there is no setting trails; did you mean trials?"),
        ("trials = 5", 'trials = "5"', "trials = '5': it needs a whole number"),
        ("trials = 5", "trials = -5", "trials = -5: it must be at least 0"),
        ("actors = 3", "learners = 0", "learners = 0: a trial needs one"),
        ("[axes]", "seed = 4\n[axes]", "seed is an axis, and also given to all trials"),
        ("[axes]", "[axes]\nnum_actors = [1, 2]", "num_actors can be no axis: the CSV has a row"),
        ("[axes]", 'algorithm = "pp"\n[axes]', "algorithm"),
        ("[1, 2, 3]", "[2026-01-01]", "seed = 2026-01-01: a flag takes a number, a text"),
        ("2e4", "2026-01-01", "total_environment_frames = datetime.date(2026, 1, 1): a flag takes"),
        ("[search]", "[search", "is no TOML"),
        (SWEEP, "seed = 1", "[axes] has no flag: name at least one"),
        (SWEEP, '{"seed": 1}', "is no TOML"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, old, new, sentence):
    with pytest.raises((UserError, SystemExit)) as refused:
        read(tmp_path, SWEEP.replace(old, new, 1))
    said = str(refused.value) if refused.type is UserError else capsys.readouterr().err
    assert sentence in said
    assert "\n" not in said.strip()
