"""The orders that a run's controller on another host may give to this one: a fixed list.

Each is a method of `LocalNode`, or of the `ChangeReporter` of the connection, with arguments of
fixed kinds. None has a command, a path that the host does not know, or any text for a shell: what
can be started here is what a frontend has left here (`keep_plan` of `LocalNode`).
"""

import re
from collections.abc import Callable
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ADDRESS = re.compile(r"[A-Za-z0-9_.:%-]{1,255}")  # of a host, or its name
_MAX_ITEMS = 10_000

Check = Callable[[Any], bool]


class Refused(ValueError):
    """An error: an order is not on the list; the message says why."""


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_ITEMS and all(map(_is_name, value))


def _are_addresses(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MAX_ITEMS
        and all(isinstance(each, str) and _ADDRESS.fullmatch(each) for each in value)
    )


def _are_sizes(value: Any) -> bool:
    """Return whether a value has the bytes of each file that the controller has."""
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_ITEMS
        and all(type(size) is int and size >= 0 for size in value.values())
    )


def _are_supervisors(value: Any) -> bool:
    """Return whether a value is where supervisors of mpirun's daemons listen, by address."""
    return (
        isinstance(value, dict)
        and len(value) <= _MAX_ITEMS
        and all(
            each == {}
            or (
                isinstance(each, dict)
                and each.keys() == {"port", "id"}
                and type(each["port"]) is int
                and 0 < each["port"] < 1 << 16
                and _is_name(each["id"])
            )
            for each in value.values()
        )
    )


# By order: its arguments, and what each must be. Those in `OPTIONAL` may be missing.
ORDERS: dict[str, dict[str, Check]] = {
    "ping": {},
    "follow": {"start": _is_name, "files": _are_sizes},
    "has_start": {"start": _is_name},
    "rank_silence": {},
    "open_windows": {},
    "request_stop": {
        "mode": lambda value: value in ("save", "now", "ended"),
        "name": lambda value: value == "" or _is_name(value),
    },
    "kill": {"lost_only": _is_flag},
    "kill_learners": {"start": _is_name},
    "restart": {"names": _are_names},
    "restart_learners": {"addresses": _are_addresses},
    "start_planned_daemon_supervisor": {"replace": _is_flag},
    "write_planned_mpirun_agent": {"supervisors": _are_supervisors},
    "end_orders": {},
}
_OPTIONAL = {"lost_only", "name"}


def parse(message: Any) -> tuple[int | None, str, dict[str, Any]]:
    """Return the number, the order and the arguments of a message. Raises Refused."""
    if not isinstance(message, dict):
        raise Refused("an order is a JSON object")
    arguments = dict(message)
    number, order = arguments.pop("id", None), arguments.pop("op", None)
    if number is not None and type(number) is not int:
        raise Refused("an order's id is a whole number")
    if not isinstance(order, str) or order not in ORDERS:
        raise Refused(f"there is no order {str(order)[:100]!r}")
    checks = ORDERS[order]
    for name, value in arguments.items():
        if name not in checks:
            raise Refused(f"the order {order} has no argument {name[:100]!r}")
        if not checks[name](value):
            raise Refused(f"the order {order} does not take {name}={str(value)[:100]!r}")
    if missing := checks.keys() - arguments.keys() - _OPTIONAL:
        raise Refused(f"the order {order} needs the argument {min(missing)}")
    return number, order, arguments
