"""A check of hosts of your own: every host has the folder of recorded games mounted.

python run_experiment_mm_raw.py --workers_csv_path=workers.csv --check --import=own_check
"""

from collections.abc import Iterable

from launcher.checks import CheckedHost, Finding, Scope, check, failed, passed

FOLDER = "/data/games"


@check("games", Scope.HOSTS)
def check_games(host: CheckedHost) -> Iterable[Finding]:
    """Check that the folder of games is mounted."""
    code, printed = host.run_program(["ls", FOLDER])
    if code:
        yield failed(printed.strip(), "mount it: sudo mount /data")
    else:
        yield passed(f"{len(printed.splitlines())} files in {FOLDER}")
