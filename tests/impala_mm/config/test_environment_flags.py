"""The texts of --env_kwargs and --env_wrappers, and what is wrong in them."""

import re

import pytest

from impala_mm.config import command_line, environment_flags
from impala_mm.config.settings import Config


def _parse(*arguments):
    (config,), _ = command_line.parse(["program", *arguments], "", Config)
    return config


def test_flags_that_mean_the_same_are_stored_alike():
    for text in ('{"a":1,\n "b":[true]}', '{"b": [true], "a": 1}'):
        assert _parse(f"--env_kwargs={text}").env_kwargs == '{"a": 1, "b": [true]}'
    inner = '{"order": {"b": 1, "a": 2}}'
    assert _parse(f"--env_kwargs={inner}").env_kwargs == inner, "an environment may read it"
    assert _parse("--env_kwargs= {} ").env_kwargs == ""
    wrapped = _parse('--env_wrappers=a.b:C {"n":1, "m":"x,y"} , d:E').env_wrappers
    assert wrapped == 'a.b:C{"m": "x,y", "n": 1},d:E'
    assert environment_flags.wrappers_text(wrapped) == wrapped


def test_a_flagfile_holds_json_without_quotes_of_a_shell(tmp_path):
    file = tmp_path / "flags"
    file.write_text('--env_kwargs={"map": "4 x 4", "q": "it\'s"}\n--env_wrappers=a:B{"n": 1}\n')
    config = _parse(f"--flagfile={file}")
    assert environment_flags.read_kwargs(config.env_kwargs) == {"map": "4 x 4", "q": "it's"}
    assert environment_flags.read_wrappers(config.env_wrappers) == [("a", "B", {"n": 1})]


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        ("--env_kwargs={a: 1}", "it is not JSON: .* at character 2"),
        ("--env_kwargs=[1]", r"it is not an object, but \[1\]"),
        ('--env_kwargs={"a": NaN}', "NaN is no number of JSON"),
        ('--env_kwargs={"a": 1, "a": 2}', "it has 'a' twice"),
        ("--env_kwargs={} 2", "it is not JSON: '2' follows the object"),
        ("--env_wrappers=Scale", "'Scale' is not a wrapper"),
        ("--env_wrappers=a:B,", "a wrapper is missing after the last comma"),
        ("--env_wrappers=a:B{1}", "the arguments of a:B: it is not JSON"),
        ("--env_wrappers=a:B{} c:D", "a comma is missing before 'c:D'"),
    ],
)
def test_a_mistake_is_refused_with_the_flag_and_its_value(argument, sentence, capsys):
    with pytest.raises(SystemExit):
        _parse(argument)
    said = capsys.readouterr().err
    assert said.startswith(f"error: {argument}: ")
    assert re.search(sentence, said), said


def test_a_moved_runs_own_file_counts_though_another_run_is_where_it_was(tmp_path):
    before, now = tmp_path / "c", tmp_path / "c-old"
    for folder in (before, now):
        (folder / "checkpoints" / "0000000001").mkdir(parents=True)
        (folder / "Sign.environment").touch()
    call = f'x:wrap{{"path": "{before}/Sign.environment"}}'
    settings = {"level_name": f"{before}/Sign.environment,catch", "env_wrappers": call, "seed": 1}
    found = environment_flags.relocated(settings, now / "checkpoints" / "0000000001")
    assert found["level_name"] == f"{now}/Sign.environment,catch"
    assert found["env_wrappers"] == f'x:wrap{{"path": "{now}/Sign.environment"}}'
    other = {"level_name": f"{before}/Lost.environment"}
    assert environment_flags.relocated(other, now) == other, "it has none of this name"
    several = {"level_name": ["a.environment", "catch"]}
    assert environment_flags.relocated(several, now) == several, "a file of a user's own"


def test_without_folders_moving_changes_nothing():
    text = '/a/b/Sign.environment,catch,x:wrap{"path": "/a/b/w.environment"}'
    moved = text.replace("/a/b", "/elsewhere")
    assert environment_flags.without_folders(text) == environment_flags.without_folders(moved)
    assert environment_flags.without_folders("catch") == "catch"
