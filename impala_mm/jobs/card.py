"""The command `impala-mm card`: a run as the folder that a model hub shows.

    FOLDER/
        README.md                   the card: metadata with the results, and how to use the policy
        about.json, variables.*     the policy, for `impala_mm.load_policy` and --checkpoint
        settings.json               all flags of its training, for --config
        replay.mp4                  a game, if the run has a video

Results are those that --mode=test and evaluators have written for the checkpoint; without any, the
mean return in training. --upload sends the folder to the Hugging Face Hub, whose login must exist.
"""

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from impala_mm.config import flags, user_modules
from impala_mm.config.errors import ImpalaError
from impala_mm.config.messages import describe_error
from impala_mm.records import run_contents
from impala_mm.records.checkpoint import CheckpointInfo
from impala_mm.runtime import lifecycle
from impala_mm.runtime.safe_files import to_json

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_USAGE = """\
```python
import impala_mm

policy = impala_mm.load_policy("FOLDER")
action = policy(observation)
```

```sh
impala-mm --mode=test --checkpoint=FOLDER
# trains such a policy
impala-mm --config=FOLDER/settings.json
```
"""


class Result(NamedTuple):
    """The mean return on a level, as a card shows it."""

    level: str
    value: str  # mean +/- deviation
    how: str  # what was played


def main(argv: Sequence[str] | None = None) -> None:
    """Write the folder that the command line names, and upload it if that is asked for."""
    parser = argparse.ArgumentParser(
        prog="impala-mm card",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", help="folder of a run or of a checkpoint, or a policy's name")
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--best", action="store_true", help="the best checkpoint, not the newest")
    parser.add_argument("--upload", default="", metavar="OWNER/NAME", help="model to write to")
    given = parser.parse_args(argv)
    _refuse_bad_upload(given.upload)
    try:
        write(given.run, given.folder, given.best)
    except ImpalaError as error:
        flags.refuse(str(error))
    if given.upload:
        _upload(given.folder, given.upload)


def write(run: str, folder: Path, best: bool = False) -> None:
    """Write the folder of a card; raise BadSettings if it exists, and as `load_policy` does."""
    user_modules.refuse_foreign()
    lifecycle.import_tensorflow()
    from impala_mm.policy.policy import load_policy  # noqa: PLC0415

    policy = load_policy(run, best)
    policy.save(folder)
    about = policy.portable_about()
    of_run = policy.path.parents[1] if policy.path.parent.name == "checkpoints" else policy.path
    rows = run_contents.read_records(of_run / "evaluations.jsonl")
    tested = [row for row in rows if row.get("updates") == about.updates and _is_complete(row)]
    found = _results(tested, about)
    has_video = _copy_video(of_run, tested, folder / "replay.mp4")
    (folder / "settings.json").write_text(to_json(about.settings, indent=1) + "\n")
    (folder / "README.md").write_text(render(about, found, has_video))
    print(f"{folder} has {policy.path} ({about.frames:,.0f} frames)")
    for each in found:
        print(f"{each.level}: {each.value} ({each.how})")
    if not tested and of_run != policy.path:  # a policy without a run has no folder for results
        what = "no games" if not rows else "no games with this checkpoint"
        print(f"note: {what} were tested: `impala-mm --mode=test --logdir={of_run}` does so")
    if not has_video:
        print("note: the run has no video: --mode=test --video_dir=videos records one")


def _is_complete(row: dict[str, Any]) -> bool:
    return bool(run_contents.game_values(row)) and run_contents.is_number(row.get("mean"))


def _results(tested: Sequence[dict[str, Any]], about: CheckpointInfo) -> list[Result]:
    """Return the newest result of each level; without any, that of the training, if it is known."""
    newest = {str(row["level"]): row for row in tested}
    if not newest and about.episode_return is not None:
        how = "mean of the last 100 games of training"
        return [Result(str(about.settings["level_name"]), f"{about.episode_return:.2f}", how)]
    found = []
    for level, row in newest.items():
        actions = "most likely actions" if row.get("deterministic") else "actions drawn"
        value, deviation = f"{row['mean']:.2f}", row.get("deviation")
        if run_contents.is_number(deviation):  # unknown of one game
            value += f" +/- {deviation:.2f}"
        found.append(Result(level, value, f"{len(row['returns'])} games, {actions}"))
    return found


def _copy_video(of_run: Path, tested: Sequence[dict[str, Any]], target: Path) -> bool:
    """Copy the newest video of this checkpoint; return whether there is one."""
    named = {(of_run / str(row.get("video", ""))).resolve() for row in tested}
    videos = [path for path in run_contents.list_videos(of_run) if path.resolve() in named]
    if videos:
        shutil.copyfile(videos[-1], target)
    return bool(videos)


def render(about: CheckpointInfo, results: Sequence[Result], has_video: bool) -> str:
    """Return the card: metadata in YAML, each text of which is also JSON, and a page."""
    settings = about.settings
    level, algorithm = str(settings["level_name"]), str(settings["algorithm"])
    name = f"{algorithm} on {level}"
    tags = ["reinforcement-learning", "deep-reinforcement-learning", "impala_mm", algorithm]
    lines = ["---", "library_name: impala_mm", "pipeline_tag: reinforcement-learning", "tags:"]
    lines += [f"- {json.dumps(tag)}" for tag in [*tags, *level.split(",")]]
    if results:
        lines += ["model-index:", f"- name: {json.dumps(name)}", "  results:"]
    for each in results:
        lines += [
            "  - task:",
            "      type: reinforcement-learning",
            "      name: reinforcement-learning",
            "    dataset:",
            f"      name: {json.dumps(each.level)}",
            f"      type: {json.dumps(each.level)}",
            "    metrics:",
            "    - type: mean_reward",
            f"      value: {json.dumps(each.value)}",
            f"      name: {json.dumps(f'mean return ({each.how})')}",
            "      verified: false",
        ]
    lines += ["---", "", f"# {name}", ""]
    lines += [
        f"A policy that impala_mm has trained for {about.frames:,.0f} environment frames.",
        "",
    ]
    if results:
        lines += ["| level | mean return | |", "|---|---|---|"]
        lines += [f"| {each.level} | {each.value} | {each.how} |" for each in results] + [""]
    if has_video:
        lines += ["`replay.mp4` shows a game.", ""]
    lines += ["Download this folder, and name it:", "", _USAGE]
    changed = [row for row in run_contents.list_settings(settings) if row.changed]
    lines += [
        "## Settings",
        "",
        "`settings.json` has all flags of its training; these are no defaults:",
        "",
    ]
    lines += [
        "```sh",
        *(f"--{row.name}={shlex.quote(str(row.value))}" for row in changed),
        "```",
        "",
    ]
    versions = ", ".join(f"{name} {version}" for name, version in about.versions.items())
    return "\n".join([*lines, f"Trained with {versions}.", ""])


def _refuse_bad_upload(repository: str) -> None:
    """Refuse what no upload can be made to, before anything is written."""
    if not repository:
        return
    if not _REPOSITORY.fullmatch(repository):
        flags.refuse(f"--upload={repository}: write OWNER/NAME, as in --upload=me/ppo-cartpole")
    if not importlib.util.find_spec("huggingface_hub"):
        flags.refuse("--upload needs huggingface_hub: pip install 'impala_mm[hub]'")


def _upload(folder: Path, repository: str) -> None:
    """Make the model if it does not exist, and upload the folder to it."""
    import huggingface_hub  # noqa: PLC0415

    hub = huggingface_hub.HfApi()
    try:
        url = hub.create_repo(repository, private=True, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=folder, commit_message="impala-mm card")
    except Exception as error:  # of its many kinds, and those of the network
        flags.refuse(
            f"--upload={repository}: {describe_error(error)}; {folder} is complete: after `hf auth "
            f"login`, `hf upload {repository} {folder}` uploads it"
        )
    print(f"uploaded to {url}, private unless it was there before")


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else TensorFlow takes the memory of each GPU
    main()
