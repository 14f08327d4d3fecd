"""Flags that only tests, recordings, exports or rehearsals read."""

import json
from collections.abc import Collection

from impala_mm.config import flags, setting_files
from impala_mm.config.settings import Config

_TEST, _RECORD, _EXPORT = "--mode=test", "--mode=record", "--mode=export"
EVALUATOR = "--job_name=evaluator"
# Where each of them has an effect.
_READ_WITH = {
    "test_num_episodes": (_TEST, EVALUATOR),
    "test_levels": (_TEST, EVALUATOR),
    "deterministic": (_TEST, _RECORD, EVALUATOR),
    "render": (_TEST,),
    "video_dir": (_TEST,),
    "video_overlay": (_TEST,),
    "episodes": (_RECORD,),
    "record_dir": (_RECORD,),
    "export_dir": (_EXPORT,),
    "updates": ("--mode=rehearsal",),
}


def refuse_idle(config: Config, also: Collection[str] = ()) -> None:
    """Refuse flags on the command line that what it starts does not read.

    Files of settings may have them, for another mode. `also` is what else it starts.
    """
    if config.job_name in ("learner", "actor"):  # the frontend gives all processes the same flags
        return
    typed = json.loads(config.origins or "{}").get(setting_files.COMMAND_LINE, ())
    job = EVALUATOR if config.job_name else f"--mode={config.mode}"
    for name in typed:
        if (places := _READ_WITH.get(name)) and not {job, *also}.intersection(places):
            advice = f"give {' or '.join(places)}, or leave it out"
            if name == "deterministic":
                advice += " (for the same weights twice: --deterministic_run)"
            flags.refuse(f"--{name} has no effect with {job}: {advice}")
