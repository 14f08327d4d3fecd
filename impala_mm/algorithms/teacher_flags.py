"""Which flags of a teacher have no effect beside the others; a learner says so when it starts.

They are not refused: the command that resumes a run may leave out --teacher.
"""

import dataclasses
import json
from collections.abc import Iterator

from impala_mm.algorithms.feature_settings import TeacherSettings
from impala_mm.config import flags
from impala_mm.config.setting_files import OF_MODES
from impala_mm.config.settings import Config


def note_unused(config: Config) -> str:
    """Return a note about given flags of a teacher that have no effect; empty if there is none."""
    if not isinstance(config, TeacherSettings):
        return ""
    defaults = {f.name: f.default for f in dataclasses.fields(config)}
    origins = json.loads(config.origins or "{}")
    of_mode = {name for source in OF_MODES for name in origins.get(source, ())}
    unused = [
        f"{flags.arguments(config, [name])[0]} ({why})"
        for name, why in _unused(config)
        if getattr(config, name) != defaults[name] and name not in of_mode
    ]
    return f"note: without effect: {', '.join(unused)}" if unused else ""


def _unused(config: TeacherSettings) -> Iterator[tuple[str, str]]:
    """Yield (flag, why) for each flag that would have no effect, whether it is given or not."""
    distils = "there is no --teacher" if not config.teacher else ""
    games = distils or (f"--teacher_data={config.teacher_data}" if config.teacher_data else "")
    if not config.uses_recorded_games:
        games = "no --offline_updates and no --teacher_data_share"
    if games:
        yield "teacher_steps", games
    if not config.teacher and not (config.offline_updates and not config.learns_from_any_policy):
        yield "teacher_cost", distils
    if not config.teacher_cost:
        distils = distils or "--teacher_cost=0"
    if distils:
        for name in ("teacher_method", "distill", "teacher_rate", "teacher_temperature"):
            yield name, distils
        if not config.guides:
            yield "teacher_frames", distils
    margin = distils or ("" if "margin" in config.distilled else "--distill names no margin")
    if margin and not getattr(config, "margin_cost", 0):
        yield "teacher_margin", margin
    returns = distils or (
        "" if config.follows_score else f"--teacher_method={config.teacher_method}"
    )
    if returns and not (config.teacher and config.mode == "reincarnate"):
        for name in ("teacher_return", "random_return", "teacher_episodes"):
            yield name, returns
