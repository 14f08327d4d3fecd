"""Several agents in real processes: self-play, tests of it, and PettingZoo's own environments."""

import pytest
from processes import EXPERIMENT, run
from rows import read_rows

pytestmark = pytest.mark.slow
LEVEL = "tests.helpers.pettingzoo_like:TicTacToe"


def _train(logdir, level, *flags):
    """Return (exit code, output) of a training."""
    return run(*EXPERIMENT, f"--level_name={level}", f"--logdir={logdir}", *flags, limit=400)


def test_a_policy_learns_from_games_against_itself(tmp_path):
    logdir = tmp_path / "run"
    saves = "--save_checkpoint_secs=5", "--log_games"
    code, output = _train(logdir, LEVEL, "--max_seconds=45", *saves)
    assert code == 0, output
    row, earlier = read_rows(logdir, "metrics.jsonl")[-1], read_rows(logdir, "games.jsonl")
    assert {"elo", "elo_past", "elo_past_best", "score/self", "score/past"} <= row.keys()
    code, output = _train(logdir, LEVEL, "--max_seconds=60", *saves)
    assert code == 0, output
    resumed = next(r for r in read_rows(logdir, "metrics.jsonl") if r["frames"] > row["frames"])
    assert abs(resumed["elo"] - row["elo"]) < abs(resumed["elo"]), "it begins at the old rating"
    games = read_rows(logdir, "games.jsonl")
    past = {game["opponent"] for game in games[len(earlier) :]} - {"self"}
    assert min(int(name.split()[1]) for name in past) < row["updates"], "a checkpoint of before"
    assert {game["opponent"].split()[0] for game in games} == {"self", "past"}
    assert {game["score"] for game in games} == {0, 0.5, 1}
    code, output = run(
        *EXPERIMENT,
        "--mode=test",
        f"--logdir={logdir}",
        "--test_num_episodes=50",
        "--opponents=random",
        limit=200,
    )
    assert code == 0, output
    assert "against random:1: " in output
    (tested,) = read_rows(logdir, "evaluations.jsonl")
    assert tested["won"] > tested["lost"]
    record = *EXPERIMENT, "--mode=record", f"--logdir={logdir}", "--episodes=4"
    code, output = run(*record, "--opponents=nowhere/run")
    assert code == 2
    assert "--opponents=nowhere/run: nowhere/run does not exist" in output
    assert not (logdir / "recorded" / "data.json").exists()
    code, output = run(*record, f"--opponents={logdir}", limit=200)
    assert code == 0, output
    assert "4 complete games" in output


def test_debug_plays_against_the_opponents(tmp_path):
    limits = "--total_environment_frames=3000", "--log_games"
    code, output = _train(tmp_path, LEVEL, "--debug", *limits)
    assert code == 0, output
    games = read_rows(tmp_path, "games.jsonl")
    past = {game["opponent"] for game in games} - {"self"}
    assert len(past) > 2, "past policies of several versions"
    assert len({game["score"] for game in games if game["opponent"] == "self"}) > 1


def test_opponents_that_need_the_network_are_refused_without_it(tmp_path):
    code, output = _train(tmp_path / "run", LEVEL, "--inference=learner")
    assert code == 2
    assert "--inference=learner: --opponents=self:0.5,past:0.5 play in actors" in output
    flags = "--inference=learner", "--opponents=random", "--max_seconds=5"
    code, output = _train(tmp_path / "other", LEVEL, *flags)
    assert code == 0, output
    row = read_rows(tmp_path / "other", "metrics.jsonl")[-1]
    assert "score/random" in row


_TURNS = "--env_wrappers=pettingzoo.utils:parallel_to_aec", "--opponents=self:0.5,past:0.4,random:1"


@pytest.mark.parametrize(
    ("package", "level", "more"),
    [
        ("mpe2", "mpe2.simple_spread_v3:parallel_env", ()),
        ("pettingzoo", "pettingzoo.classic.tictactoe_v3:env", ()),
        ("pettingzoo", "pettingzoo.classic.rps_v2:parallel_env", _TURNS),
    ],
)
def test_environments_of_pettingzoo_play(package, level, more, tmp_path):
    pytest.importorskip(package)
    flags = "--num_envs=2", "--num_actors=1", "--max_seconds=10", "--check_env_secs=20"
    code, output = _train(tmp_path / "run", level, *flags, *more)
    assert code == 0, output
    assert "warning" not in output
    row = read_rows(tmp_path / "run", "metrics.jsonl")[-1]
    assert row["games"] > 0
