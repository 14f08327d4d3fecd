"""The ways in which a flag is typed, also in files of flags, and the mistakes in both."""

import dataclasses

import pytest

from impala_mm.config import command_line
from impala_mm.config.flags import OldName, flag


@dataclasses.dataclass(frozen=True)
class _Config:
    rate: float = flag(1, "A number.", group="G")
    count: int = flag(2, "A whole number.", group="G", auto=True)
    render: bool = flag(False, "A truth value.", group="G")
    track: str = flag("", "A text.", group="G", bare="wandb")
    env: tuple[str, ...] = flag((), "Texts.", group="G")

    ALIASES = {"tracker": "track"}  # noqa: RUF012 - of a class, not of its objects
    OLD_NAMES = {"speed": OldName("rate"), "gone": OldName(None, "x")}  # noqa: RUF012


def _parse(*arguments):
    (config,), given = command_line.parse(["program", *arguments], "", _Config)
    return dataclasses.astuple(config), given


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], (1.0, 2, False, "", ())),
        (["--rate=3", "--"], (3.0, 2, False, "", ())),
        (["--rate=3", "--count", "-4", "--render"], (3.0, -4, True, "", ())),
        (["-rate", "-3", "--count=auto", "--norender"], (-3.0, -1, False, "", ())),
        (["--render=T", "--track", "--env=A=1", "--env=B"], (1, 2, True, "wandb", ("A=1", "B"))),
        (["--track=mine", "--notracker", "--render=0"], (1.0, 2, False, "", ())),
        (["--rate=2", "--speed=3", "--gone", "x", "--rate=4"], (4.0, 2, False, "", ())),
    ],
)
def test_a_flag_may_be_typed_in_several_ways(arguments, values):
    config, given = _parse(*arguments)
    assert config == values
    assert given == [
        name for name in ("rate", "count", "render", "track", "env") if name in str(arguments)
    ]


def test_a_file_of_flags_stands_in_their_place_and_may_name_another(tmp_path, capsys):
    (tmp_path / "inner").write_text("--count=5\n")
    (tmp_path / "outer").write_text(
        f"# one\n// two\n\n  --rate=2 \n--flagfile={tmp_path}/inner\n--env=a b\n"
    )
    outer = f"--flagfile={tmp_path}/outer"
    assert _parse("--rate=1", outer)[0] == (2.0, 5, False, "", ("a b",))
    assert _parse("-flagfile", f"{tmp_path}/outer", "--rate=1")[0][:2] == (1.0, 5)
    (tmp_path / "inner").write_text(outer)
    (tmp_path / "bytes").write_bytes(b"--rate=\xff")
    for name, why in (("outer", "in that file itself"), ("bytes", "UTF-8"), ("none", "No such")):
        refusal = _refused(capsys, f"--flagfile={tmp_path}/{name}")
        assert refusal.startswith(f"error: --flagfile={tmp_path}/{name}")
        assert why in refusal


def _refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        _parse(*arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--rate=x"], "--rate=x: needs a number\n"),
        (["--count=x"], "--count=x: needs a whole number or auto\n"),
        (["--render=x"], "--render=x: needs true or false\n"),
        (["--rate"], "--rate has no value: write --rate=VALUE\n"),
        (["--gone"], "--gone has no value: write --gone=VALUE\n"),
        (["--norender=1"], "there is no flag --norender; did you mean --render?\n"),
        (["--norate"], "there is no flag --norate"),
        (["render"], "'render' is no flag: write --name=value"),
        (["-"], "'-' is no flag"),
        (["---rate=2"], "there is no flag"),
        (["--flagfile="], "--flagfile names no file: write --flagfile=PATH\n"),
        (["--rate=2", "--flagfile"], "--flagfile names no file: write --flagfile=PATH\n"),
        (["--a", "b", "--cd=e", "f"], "no flag --a (`--help=WORD` searches them)\nerror: there is"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, capsys):
    assert sentence in _refused(capsys, *arguments)
