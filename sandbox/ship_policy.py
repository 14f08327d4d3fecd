"""Make a policy of a run one of those that come with this package, with its card.

python sandbox/ship_policy.py runs/FOLDER NAME         writes impala_mm/shipped_policies/NAME/

The folder holds the weights of the best checkpoint in half precision, a picture of a game if the
environment draws one, and a card: the command, the commit, the scores over 100 games.
"""

import datetime
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

import impala_mm
from impala_mm.evaluation import games
from impala_mm.records.run_contents import read_json_lines
from impala_mm.runtime import provenance

_POLICIES = Path(impala_mm.__file__).parent / "shipped_policies"
_GAMES = 100
_WIDTH = 320  # of the picture, in pixels
_STEPS = 240  # of a game, after which the picture is taken

_CARD = """\
# {name}

![A game]({name}.png)

A policy for `{level}`, trained by {algorithm}: {weights:,} weights, {size:.2f} MB.

| | |
|---|---|
| mean return of {games} games, most likely actions | {likely:.2f} ± {likely_deviation:.2f} |
| mean return of {games} games, actions drawn as in training | {drawn:.2f} ± {drawn_deviation:.2f} |
| environment frames of training | {frames:,.0f} |
| command | `{command}` |
| commit | {commit} |
| tested with | {versions}, {date} |
| licence | that of this project, Apache-2.0 |

```sh
python experiment.py --mode=test --policy={name} --video_dir=videos
```
"""


def main() -> None:
    """Write the folder of a policy."""
    if len(sys.argv) != 3:
        sys.exit("error: give the run's folder and the policy's name")
    run, name = Path(sys.argv[1]), sys.argv[2]
    target = _POLICIES / name
    trained = impala_mm.load_policy(run, best=True)
    shutil.rmtree(target, ignore_errors=True)
    trained.save(target, half=True)
    policy = impala_mm.load_policy(target)
    level = policy.spec.level_name
    results = {
        likely: impala_mm.evaluate(target, _GAMES, deterministic=likely).returns
        for likely in (True, False)
    }
    has_picture = _draw(policy, level, target / f"{name}.png")
    start = read_json_lines(run / "starts.jsonl")[-1]
    versions = provenance.versions()
    packages = ["gymnasium", *["ale-py"] * bool(policy.spec.emulator)]
    card = _CARD.format(
        name=name,
        level=level,
        algorithm=policy.config.algorithm,
        weights=sum(int(v.shape.num_elements()) for v in policy.algorithm.variables.trained),
        size=sum(path.stat().st_size for path in target.glob("variables*")) / 1e6,
        games=_GAMES,
        likely=np.mean(results[True]),
        likely_deviation=np.std(results[True]),
        drawn=np.mean(results[False]),
        drawn_deviation=np.std(results[False]),
        frames=policy.about.frames,
        command=re.sub(r" --logdir=\S+", "", start["command"]),
        commit=start["revision"],
        versions=", ".join(f"{package} {versions[package]}" for package in packages),
        date=datetime.date.today().isoformat(),
    )
    if not has_picture:
        card = card.replace(f"![A game]({name}.png)\n\n", "")
    (target / "README.md").write_text(card)
    print(card)


class _Snapshot:
    """A viewer that keeps one picture of a game."""

    needs_policy_output = False

    def __init__(self) -> None:
        self._steps, self.picture = 0, None

    def show(self, frame: Any) -> None:
        """Take the picture of this step, until the game has gone on for long enough."""
        self._steps += 1
        if self._steps <= _STEPS:
            self.picture = frame.picture.copy()

    def close(self) -> None:
        """Keep the picture."""


def _draw(policy: Any, level: str, path: Path) -> bool:
    """Play a game and save a picture of it; return False if the level cannot be drawn here."""
    import cv2  # noqa: PLC0415

    snapshot = _Snapshot()
    try:
        games.evaluate_level(policy, level, 1, 1, viewers=lambda _: [snapshot])
    except impala_mm.errors.BadEnvironment:
        return False
    picture = snapshot.picture
    assert picture is not None
    height = round(picture.shape[0] * _WIDTH / picture.shape[1])
    small = cv2.resize(picture, (_WIDTH, height), interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(path), cv2.cvtColor(small, cv2.COLOR_RGB2BGR))
    return True


if __name__ == "__main__":
    main()
