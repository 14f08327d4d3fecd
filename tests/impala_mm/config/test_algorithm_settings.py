"""An algorithm's own flags and defaults, from the module beside its own."""

import dataclasses
import sys

import pytest
from processes import ROOT, run

from impala_mm.config import command_line
from impala_mm.config.settings import Config

SETTINGS = """
import dataclasses
from impala_mm.config import command_line, flags
from impala_mm.config.settings import Config

@dataclasses.dataclass(frozen=True)
class Settings(Config):
    batch_size: int = flags.default(Config, "batch_size", 7)
    passes: int = flags.flag(4, "Passes over each batch.", group="Mine", least=1)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A current folder with an algorithm whose own module must not be imported for its flags."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    (tmp_path / "mine.py").write_text("1 / 0")
    (tmp_path / "mine_settings.py").write_text(SETTINGS)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def _parse(*arguments):
    (config,), given = command_line.parse(["experiment.py", *arguments], "", Config)
    return config, given


def _refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        _parse(*arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--algorithm=mine", "--passes=9"],
        ["--passes=9", "--algorithm=mine"],
        ["--passes", "9", "--algorithm=impala", "--algorithm", "mine"],
        ["--flagfile=flags"],
    ],
)
def test_the_algorithm_decides_which_flags_there_are_wherever_it_is_named(here, arguments):
    (here / "flags").write_text("--passes=9\n--algorithm=mine\n")
    config, given = _parse(*arguments)
    assert (config.passes, config.batch_size, config.algorithm) == (9, 7, "mine")
    assert "passes" in given
    assert "batch_size" not in given
    assert dataclasses.asdict(config)["passes"] == 9
    assert not hasattr(config, "vtrace_lambda")


def test_a_value_that_looks_like_a_flag_is_a_value_for_the_algorithm_too(here):
    config, given = _parse("--test_levels", "--algorithm=mine")
    assert (config.test_levels, config.algorithm, given) == (
        "--algorithm=mine",
        "impala",
        ["test_levels"],
    )
    assert not hasattr(config, "passes")


def test_help_lists_an_algorithms_own_flags_under_their_heading_with_its_defaults(here, capsys):
    with pytest.raises(SystemExit):
        _parse("--help", "--algorithm=mine")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Mine: --passes Passes over each batch. Default: 4." in shown
    assert "--batch_size=7" in shown
    assert "vtrace_lambda" not in shown


@pytest.mark.parametrize("last", ["--algorithm", "--preset", "--seed"])
def test_help_is_printed_if_a_flag_lacks_its_value(last, capsys):
    with pytest.raises(SystemExit) as ended:
        _parse("--help", last)
    assert ended.value.code == 0
    assert "--level_name" in capsys.readouterr().out


def test_a_flag_of_another_algorithm_is_refused_with_where_it_exists(here, capsys):
    said = _refusal(capsys, "--algorithm=mine", "--vtrace_lambda=1")
    assert "--vtrace_lambda of --algorithm=mine; --algorithm=impala has it" in said
    assert "there is no flag --passes" in _refusal(capsys, "--passes=2")
    assert "--passes=0: it must be at least 1" in _refusal(capsys, "--algorithm=mine", "--passes=0")


def test_an_algorithm_without_settings_has_the_shared_flags_alone(here):
    (here / "mine_settings.py").unlink()
    config, _ = _parse("--algorithm=mine")
    assert type(config) is Config


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "mine_settings defines no class Settings"),
        ("class Settings: pass", "mine_settings has the Settings <class"),
        (SETTINGS.replace("@dataclasses.dataclass(frozen=True)", ""), "Settings is no dataclass"),
        (SETTINGS + "    width2: int = 3", "Settings.width2 is no flag"),
        (
            SETTINGS + "    sizes: list = flags.flag((), '', group='Mine')",
            "Settings.sizes: a flag is an int, float, bool or str",
        ),
        (
            SETTINGS + "    seed: int = flags.flag(3, '', group='Mine')",
            "Settings.seed is a flag of all algorithms",
        ),
        (
            SETTINGS + "    xyz: int = flags.default(Config, 'batchsize', 3)",
            "raises ValueError: Config has no flag batchsize",
        ),
    ],
)
def test_wrong_settings_are_refused_with_what_is_wrong(here, text, sentence, capsys):
    (here / "mine_settings.py").write_text(text)
    said = _refusal(capsys, "--algorithm=mine")
    assert "error: --algorithm=mine: " in said
    assert sentence in said
    assert ("Traceback" in said) == ("raises" in sentence)


def test_settings_refuse_values_that_do_not_fit_together_in_their_own_words(here, capsys):
    (here / "mine_settings.py").write_text(
        f"""{SETTINGS}
    def __post_init__(self):
        if self.batch_size % self.passes:
            raise ValueError(f"--passes={{self.passes}} does not divide {{self.batch_size}}")
"""
    )
    assert _parse("--algorithm=mine", "--passes=7")[0].passes == 7
    printed = _refusal(capsys, "--algorithm=mine", "--passes=3")
    assert printed == "error: --passes=3 does not divide 7\n"


def test_settings_that_postpone_annotations_are_read(here):
    (here / "mine_settings.py").write_text("from __future__ import annotations" + SETTINGS)
    assert _parse("--algorithm=mine", "--passes=3")[0].passes == 3


def test_a_missing_algorithm_names_the_folders_that_were_searched(here, capsys):
    said = _refusal(capsys, "--algorithm=mien")
    assert "--algorithm=mien: there is no such algorithm; write impala, ppo, " in said
    assert f"no module named 'mien' was found in {here} " in said
    assert said.endswith("; did you mean mine?\n")
    (here / "box").mkdir()
    (here / "box" / "__init__.py").touch()
    assert "it has no module ppo" in _refusal(capsys, "--algorithm=box.ppo")
    (here / "box" / "__init__.py").write_text("import nosuchpackage")
    sys.modules.pop("box")
    said = _refusal(capsys, "--algorithm=box.ppo")
    assert "import nosuchpackage" in said
    assert "since it raises ModuleNotFoundError: No module named 'nosuchpackage'" in said


def test_the_frontend_knows_an_algorithms_flags_without_tensorflow(here):
    program = (sys.executable, "-X", "importtime", ROOT / "run_experiment_mm_raw.py")
    _, printed = run(*program, "--algorithm=mine", "--passes=5", "--dry_run", cwd=here)
    assert "--passes=5" in printed
    assert "| tensorflow" not in printed
