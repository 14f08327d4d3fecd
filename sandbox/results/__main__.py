"""The results of runs: curves, reports, comparisons, and the curves that this project publishes."""

import argparse
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# This folder, which Python puts there, has modules with general names.
sys.path[0] = str(ROOT)

from impala_mm.config import command_line, flags
from impala_mm.records.run_contents import PANELS
from sandbox.results.compare import recorded_names
from sandbox.results.documented import DOCUMENTED_RUNS
from sandbox.results.summary import command

_EXAMPLES = """examples:
  {0} curve                              the newest run, in the terminal
  {0} plot runs/a                        runs/a/curves.png
  {0} report runs/a                      runs/a/report.html
  {0} compare runs/fast-* runs/slow-*    which of two ways is better
  {0} verify cartpole                    does this machine learn as recorded?

`{0} COMMAND --help` says more. `record` and `pages` are for maintainers."""

_CURVE = """Draw a run's learning curve in the terminal and compare it with a random policy.

  {0} curve                the newest folder in runs/
  {0} curve runs/FOLDER"""

_PLOT = """Draw the learning curves of runs over frames and over time.

  {0} plot runs/FOLDER                 FOLDER/curves.png and .svg
  {0} plot runs/a-* runs/b-*           ./curves.png and .svg
  {0} plot runs/* --out=pictures/all --only=return,speed

Runs whose settings differ only in the seed form one group: a line for their mean and a band from
the lowest to the highest value. Other settings form other groups, and the legend names the
settings in which they differ. A return is the mean over the last 100 complete games; frames are
environment frames; seconds are training time since the first unroll, and continue when a run
is resumed."""

_REPORT = """Write LOGDIR/report.html for each run: one file to keep, mail or open anywhere.

  {0} report runs/FOLDER
  {0} report runs/sweep           the folder of an experiment: all of its trials

It has the result, the bottleneck, curves, evaluations, videos, settings and machine."""

_COMPARE = """Compare ways to train over several seeds, by interquartile means.

  {0} compare runs/fast-* runs/slow-*               ./comparison.json, .svg and .png
  {0} compare runs/x/*/* --group='(.*)-' --out=x    a kind is a name before "-SEED"
  {0} compare replay-kinds                          a recorded comparison
  {0} compare replay-kinds --commands --seeds=1,2   prints the commands that repeat it

Runs that differ only in the seed are of one kind. The table has the return at the end and its mean
over all frames, each with a 95% confidence interval (bootstrap). To repeat a comparison, pipe its
commands to `sh -e`; a run that was interrupted continues.

Recorded comparisons:{1}"""

_VERIFY = """Check whether this machine reproduces a published learning curve.

  {0} verify cartpole                     runs the command and compares its curve
  {0} verify cartpole --of=runs/FOLDER    compares a run that already exists
  {0} verify pong --until=-19.5           only up to this return: takes minutes

A run must reach the returns on its way to the goal within 1.5 times the frames, and on the same
kind of machine also the seconds, that the slowest recorded seed needed. Flags of experiment.py may
follow. Exit code 0: it does. 1: it does not, and the table shows where. 2: the check was
impossible, for example because a package is not installed.

The names:{1}"""

_RECORD = """Record reference curves: run a documented command and save its learning curve.

  {0} record cartpole --seeds=1,2,3           runs the seeds one after another
  {0} record cartpole --resume                continues the newest run in runs/
  {0} record cartpole --take=runs/FOLDER      saves a run of the command that is over

Ctrl-C saves a run, and --resume continues it, with whatever code there is now: the file then names
the commit of each start. While a run is suspended (kill -STOP), it counts no seconds.

A curve is saved as sandbox/reference/NAME-SEED.json, and the pages are written anew. Run nothing
else on the machine; if you must, give --shared, which is recorded: `verify` then compares frames
but not seconds. Flags of experiment.py may follow.

The names:{1}"""

_PAGES = """Write the tables of README.md and curves.md, and draw the pictures of recorded curves.

  {0} pages"""


def main() -> None:
    """Parse the command line and run the command."""
    command_line.escape_unknown_characters()
    program = command()
    parser = _Parser(
        prog=program, description=__doc__, epilog=_EXAMPLES.format(program), formatter_class=_Help
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, about: str, names: Iterable[str] = ()) -> argparse.ArgumentParser:
        text = about.format(program, f"\n{textwrap.fill(', '.join(names), 96)}")
        first = text.partition("\n")[0]
        return commands.add_parser(name, help=first, description=text, formatter_class=_Help)

    one = add("curve", _CURVE)
    one.add_argument("run", nargs="?", type=Path, help="the run's folder")
    one = add("plot", _PLOT)
    one.add_argument("runs", nargs="+", type=Path, metavar="run", help="folder of a run")
    one.add_argument("--out", type=Path, help="path of the figures, without .png or .svg")
    panels = ", ".join(panel.name for panel in PANELS)
    one.add_argument("--only", default="", help=f"panels, separated by commas: {panels}")
    _add_group(one)
    one = add("report", _REPORT)
    one.add_argument("runs", nargs="+", type=Path, metavar="run", help="folder of a run")
    one = add("compare", _COMPARE, recorded_names())
    one.add_argument("runs", nargs="+", metavar="run", help="folders of runs, or a recorded name")
    one.add_argument("--out", type=Path, help="path of the files, without their endings")
    one.add_argument("--commands", action="store_true", help="print the recorded commands instead")
    _add_seeds(one)
    _add_group(one)
    one = add("verify", _VERIFY, DOCUMENTED_RUNS)
    one.add_argument("name", choices=DOCUMENTED_RUNS, metavar="name")
    one.add_argument("--seed", type=int, default=1, help="seed of the run (1)")
    one.add_argument("--of", type=Path, help="folder of an existing run; starts no run")
    one.add_argument("--until", type=float, help="stop at this mean return, and check only this")
    one = add("record", _RECORD, DOCUMENTED_RUNS)
    one.add_argument("name", choices=DOCUMENTED_RUNS, metavar="name")
    _add_seeds(one)
    one.add_argument("--resume", action="store_true", help="continue the newest run, see above")
    one.add_argument("--take", type=Path, help="folder of a finished run to save; starts no run")
    one.add_argument("--shared", action="store_true", help="other programs use the machine, too")
    add("pages", _PAGES)
    given, more = parser.parse_known_args()
    if more and given.command not in ("verify", "record"):
        parser.error(f"unknown: {' '.join(more)}")
    try:
        _run(given, more)
    except OSError as error:
        flags.refuse(f"{error.filename} cannot be read or written: {error.strerror}")
    except re.error as error:
        flags.refuse(f"--group={given.group} is not a regular expression: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


class _Parser(argparse.ArgumentParser):
    """A parser whose options must be written out: the others are experiment.py's."""

    def __init__(self, **known):
        super().__init__(allow_abbrev=False, **known)


_Help = argparse.RawDescriptionHelpFormatter


def _add_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--group",
        default="",
        help="regular expression; runs whose names match with the same text are one group",
    )


def _add_seeds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", default="1", help="seeds, separated by commas (1)")


def _run(given: argparse.Namespace, more: list[str]) -> None:
    """Run a command; each imports what it needs."""
    if given.command == "curve":
        from sandbox.results import curve

        curve.show(given.run)
    elif given.command == "plot":
        from sandbox.results import plot

        plot.write_curves(given.runs, given.out, given.only, given.group)
    elif given.command == "report":
        from sandbox.results import experiment_report, report, runs

        experiments = [each for each in given.runs if experiment_report.is_experiment(each)]
        for folder in experiments:
            print(f"wrote {experiment_report.write_report(folder)}")
        others = [folder for folder in given.runs if folder not in experiments]
        for run in runs.read_all(others) if others else ():
            print(f"wrote {report.write_report(run)}")
    elif given.command == "compare":
        _compare(given)
    elif given.command == "verify":
        from sandbox.results import verify

        verify.verify(given.name, given.seed, given.of, given.until, more)
    elif given.command == "pages":
        from sandbox.results import pages

        pages.write_pages()
    else:
        from sandbox.results import documented, pages

        folders = [given.take]
        if not given.take:  # all are over before anything is written
            seeds = map(int, given.seeds.split(","))
            folders = [documented.run_seed(given.name, seed, given.resume, *more) for seed in seeds]
        for folder in folders:
            documented.save_reference(given.name, folder, not given.shared, *more)
        pages.write_pages()


def _compare(given: argparse.Namespace) -> None:
    """Compare runs, or show or repeat a recorded comparison."""
    from sandbox.results import compare

    if given.runs[0] not in recorded_names():
        out = given.out or Path("comparison")
        compare.compare(list(map(Path, given.runs)), given.group, out)
        return
    (name,) = given.runs
    if given.commands:
        print("\n".join(compare.repeat(name, list(map(int, given.seeds.split(","))))))
        return
    found = compare.read(name)
    if given.out:
        compare.draw(found, given.out.with_suffix(".svg"))
    print(compare.table(found))


if __name__ == "__main__":
    main()
