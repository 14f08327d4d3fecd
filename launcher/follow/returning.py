"""The learners' hosts that were lost and answer again: when each is used again, and how often.

`learner_recovery` restarts the learners with them. A host waits twice as long before each further
return. At first it is on trial: if the learners do not work with it, they continue without it.
"""

from collections.abc import Callable, Set

RETURNS = 5  # of one host, while a frontend follows the run
# Seconds for the first update with a returned host; its compilation sends heartbeats for 180 s.
TRIAL_SECONDS = 300.0


class ReturningHosts:
    """The lost hosts of one run's learners, by id."""

    def __init__(self, seconds: float):
        """Let a host answer for `seconds` before it returns for the first time; 0: none returns."""
        self._seconds = seconds
        self._answers_since: dict[str, float] = {}
        self._returns: dict[str, int] = {}  # so far
        self._on_trial: dict[str, float] = {}  # since when

    def wait(self, host_id: str) -> float:
        """Return the seconds for which a host must answer before it returns; 0: it does not."""
        returns = self._returns.get(host_id, 0)
        return self._seconds * 2**returns if returns < RETURNS else 0.0

    def update(self, answering: Set[str], now: float) -> Set[str]:
        """Take the lost hosts that answer now; return those that have just begun to."""
        new = answering - self._answers_since.keys()
        self._answers_since = {each: self._answers_since.get(each, now) for each in answering}
        return {host_id for host_id in new if self.wait(host_id)}

    def due(self, now: float) -> set[str]:
        """Return the hosts that have answered for long enough."""
        return {
            host_id
            for host_id, since in self._answers_since.items()
            if (wait := self.wait(host_id)) and now - since >= wait
        }

    def begin_trial(self, host_ids: Set[str], now: float) -> None:
        """Count a return of these hosts: the learners are being restarted with them."""
        for host_id in host_ids:
            self._returns[host_id] = self._returns.get(host_id, 0) + 1
            self._answers_since.pop(host_id, None)
            self._on_trial[host_id] = now

    @property
    def has_trial(self) -> bool:
        """Whether a returned host is on trial."""
        return bool(self._on_trial)

    def end_trials(self) -> None:
        """End all trials: the learners are being restarted on fewer hosts."""
        self._on_trial = {}

    def failed(self, crashed: bool, are_stuck: Callable[[], bool], now: float) -> set[str]:
        """Return the hosts whose trial has failed, and end the trials that are over.

        They have failed as soon as the learners have crashed since their restart, or if these make
        no progress at the end of the trial.
        """
        over = {each for each, since in self._on_trial.items() if now - since > TRIAL_SECONDS}
        if not self._on_trial or not (crashed or over):
            return set()
        failed = set(self._on_trial) if crashed or are_stuck() else set()
        self._on_trial = (
            {} if failed else {h: t for h, t in self._on_trial.items() if h not in over}
        )
        return failed
