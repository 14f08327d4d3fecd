"""A report of broken environments to the learner, which shows it where the user looks."""

from impala_mm.environments.types import Fault
from impala_mm.transport.client import Client, Refused, Unreachable

_SECONDS = 5.0  # seconds after which a report that is not answered is dropped


def report_failure(address: str, token: str, actor: int, fault: Fault, gave_up: str = "") -> None:
    """Report a fault to the learner at `address`; do nothing if it does not answer.

    `gave_up` says why the actor ends, if it does.
    """
    text = {"text": fault.text, "kind": fault.kind, "traceback": fault.traceback}
    request = {"probe": True, "actor": actor, "failure": text | {"gave_up": gave_up}}
    try:
        Client(address, token, _SECONDS).hello(request)
    except (Refused, Unreachable):
        return
