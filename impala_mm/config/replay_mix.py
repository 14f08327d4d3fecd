"""The text of --replay: which parts of a batch are new unrolls, and which come from which replay.

    queue:0.5,uniform:0.3:10000,elite:0.2:1000:strategy=3
    KIND:SHARE[:CAPACITY][:OPTION=VALUE ...]

Here is all that the flags need to know of each kind of replay. It must not import TensorFlow or
NumPy: the flags are checked before these are loaded.
"""

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from impala_mm.config.registry import Registry

QUEUE = "queue"
_CAPACITY = 10_000  # unrolls, if a part names no capacity
_MOST = 100_000_000  # unrolls: what is known of each takes memory beside its bytes
_SMALL = 1e-5  # error of shares that are written with six digits


class Option(NamedTuple):
    """An option of a part: its default, and the values that it may have."""

    default: float | str
    choices: tuple[str, ...] = ()
    least: float = 0.0
    most: float = math.inf

    def read(self, text: str) -> float | str:
        """Return the value of a text; raise a ValueError that says what it must be."""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"it must be one of {', '.join(self.choices)}")
            return text
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most:
            raise ValueError(f"it must be a number from {self.least:g} to {self.most:g}")
        return value


class _Distance(Option):
    """The option `distance`: one of its choices, or lP for the norm of order P."""

    def read(self, text: str) -> float | str:
        """Return the text if it names a distance; raise a ValueError that says what it must be."""
        if text in self.choices:
            return text
        try:
            Option(2.0, least=1).read(text[1:] if text.startswith("l") else "")
        except ValueError:
            raise ValueError(
                f"it must be {', '.join(self.choices)}, or l and the order of a norm, which is at "
                f"least 1, such as l1, l2, l2.5 or linf"
            ) from None
        return text


class Kind(NamedTuple):
    """A kind of replay, as the flags see it."""

    sampler: Any  # the class, or its place "module:attribute"
    options: Mapping[str, Option]
    # What the learner has to compute for it: "features" of unrolls, "priorities" of new ones.
    needs: Sequence[str] = ()


_DISTANCE = _Distance("l2", ("cosine", "kl"))
# Candidates for each unroll that is drawn: `lambda` at first, falling to 1 over the share `anneal`
# of the run's frames. With a share above 1 it would be 1 after the run's end, at infinity never.
_CANDIDATES = {"lambda": Option(3.0, least=1, most=1000), "anneal": Option(1.0)}
# The kinds of parts by name; `sandbox/replay.md` explains them.
KINDS = Registry[Kind](
    "kind of replay",
    {
        QUEUE: Kind(None, {}),
        "uniform": Kind("impala_mm.replay.samplers:Uniform", {}),
        "prioritised": Kind(
            "impala_mm.replay.samplers:Prioritised",
            {
                "exponent": Option(0.6, most=10),
                "correction": Option(0.4, most=1),
                "final": Option(1.0, most=1),
                "anneal": Option(1.0, most=1),
            },
            needs=["priorities"],
        ),
        "attentive": Kind(
            "impala_mm.replay.elite:Attentive",
            {"distance": _DISTANCE, **_CANDIDATES},
            needs=["features"],
        ),
        "elite": Kind(
            "impala_mm.replay.elite:Elite",
            {
                "distance": _DISTANCE,
                "strategy": Option("3", ("1", "2", "3", "4")),
                "insertion": Option("oldest", ("oldest", "elite")),
                "compared": Option(20, least=1, most=10_000),
                "max_age": Option(100),
                **_CANDIDATES,
            },
            needs=["features"],
        ),
    },
)


def register(
    name: str,
    sampler: Any = None,
    *,
    options: Mapping[str, Option] = MappingProxyType({}),
    needs: Sequence[str] = (),
) -> Callable[[Any], Any]:
    """Add a kind of replay: its class, a `Sampler`, or the place of the class, "module:attribute".

    Without a class, return a decorator of it. `needs`: see `Kind`.
    """

    def add(sampler: Any) -> Any:
        KINDS.register(name, Kind(sampler, options, needs))
        return sampler

    return add(sampler) if sampler else add


class Part(NamedTuple):
    """One part of every batch."""

    kind: str  # one of KINDS
    share: float  # of the batch's columns, 0 to 1
    capacity: int  # unrolls; 0 for the queue
    options: dict[str, float | str]  # all that this kind has
    number: int = 1  # of the parts of this kind, in their order

    @property
    def name(self) -> str:
        """The kind, for the second part of a kind with its number, such as elite-2."""
        return self.kind if self.number == 1 else f"{self.kind}-{self.number}"


class Mix(NamedTuple):
    """The parts of a batch, the queue first."""

    queue: Part
    replays: tuple[Part, ...]

    def who_need(self, what: str) -> list[str]:
        """Return the names of the parts whose kinds need something; see `Kind`."""
        return [part.name for part in self.replays if what in KINDS[part.kind].needs]


def parse(text: str) -> Mix:
    """Return the parts that a text names; raise a ValueError that says what is wrong."""
    parts = [_parse_part(each.strip()) for each in text.split(",")]
    kinds = [part.kind for part in parts]
    if kinds.count(QUEUE) > 1:
        raise ValueError("it names queue twice: add up the shares")
    if kinds == [QUEUE]:
        raise ValueError(
            "it names no replay: add one, such as queue:0.5,uniform:0.5:10000, or leave it out"
        )
    if abs((total := math.fsum(part.share for part in parts)) - 1) > _SMALL:
        raise ValueError(f"the shares of its parts sum to {total:g}: they must sum to 1")
    queue = next((part for part in parts if part.kind == QUEUE), Part(QUEUE, 0.0, 0, {}))
    numbered = [
        part._replace(number=1 + kinds[:i].count(part.kind)) for i, part in enumerate(parts)
    ]
    return Mix(queue, tuple(part for part in numbered if part.kind != QUEUE))


def rewrite(text: str) -> str:
    """Return --replay's text, with that of the file in its place if it names one.

    So other processes and hosts need no file. Raises a ValueError that says what is wrong.
    """
    if not text:
        return text
    if text.endswith(".toml"):
        text = _read_file(Path(text))
    parse(text)
    return text


def split_columns(mix: Mix, batch_size: int) -> list[int]:
    """Return the columns of each part, the queue's first; raise a ValueError if they are not whole.

    Its message names the nearest shares that make whole unrolls.
    """
    parts = [part for part in (mix.queue, *mix.replays) if part.share]
    wanted = [part.share * batch_size for part in parts]
    columns = [round(each) for each in wanted]
    tolerated = _SMALL * batch_size
    if min(columns) and all(
        abs(n - each) <= tolerated for n, each in zip(columns, wanted, strict=True)
    ):
        return columns if mix.queue.share else [0, *columns]
    if batch_size < len(parts):
        raise ValueError(
            f"its parts cannot share --batch_size={batch_size}: raise that to at least {len(parts)}"
        )
    nearest = _whole(wanted, batch_size)
    if not min(nearest):  # one for each part, and the others in proportion
        nearest = [1 + n for n in divide(batch_size - len(parts), wanted)]
    texts = (
        _text(part._replace(share=n / batch_size)) for part, n in zip(parts, nearest, strict=True)
    )
    raise ValueError(
        f"its shares make no whole unrolls of --batch_size={batch_size}; the nearest that do: "
        f"{','.join(texts)}"
    )


def _text(part: Part) -> str:
    """Return the text of a part, without the options that have their default."""
    options = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in part.options.items()
        if value != KINDS[part.kind].options[name].default
    ]
    capacity = [f"{part.capacity}"] if part.capacity else []
    return ":".join([part.kind, f"{part.share:.6g}", *capacity, *options])


def _whole(wanted: Sequence[float], total: int) -> list[int]:
    """Return whole numbers of this sum, each less than 1 from what is wanted."""
    floors = [math.floor(each + _SMALL) for each in wanted]
    by_rest = sorted(range(len(wanted)), key=lambda i: floors[i] - wanted[i])
    for i in by_rest[: total - sum(floors)]:
        floors[i] += 1
    return floors


def divide(number: int, shares: Sequence[float]) -> list[int]:
    """Return whole numbers whose sum is `number`, in proportion to the shares as nearly as can be.

    The largest remainders are rounded up; of equal ones the first.
    """
    total = math.fsum(shares)
    return _whole([number * share / total for share in shares], number)


def updates_per_unroll(mix: Mix, batch_size: int, ratio: float) -> float:
    """Return the updates that each new unroll allows; `ratio` is --replay_ratio, or 0.

    Without a ratio, an update has as many new unrolls as its queue has columns, or without a queue
    as a batch has. A ratio that is this one, written with six digits, is exactly this one: else an
    update would be allowed an unroll too early in the end. Raises a ValueError as `split_columns`
    does.
    """
    columns = split_columns(mix, batch_size)[0]
    if ratio and abs(ratio * columns - 1) > _SMALL:
        return ratio
    return 1 / (columns or batch_size)


def why_unsuitable(mix: Mix, batch_size: int, ratio: float) -> str:
    """Return why a mix does not fit the other flags, after `--replay=...: `; usually empty.

    `ratio` is --replay_ratio; 0: the mix determines it.
    """
    try:
        columns = split_columns(mix, batch_size)
    except ValueError as error:
        return str(error)
    for part in mix.replays:
        if part.capacity < batch_size:
            return (
                f"{part.name} has room for {part.capacity} unrolls, less than "
                f"--batch_size={batch_size}: give it a capacity of at least {batch_size}"
            )
    if ratio and columns[0] and ratio * columns[0] < 1 - _SMALL:
        return (
            f"its queue takes {columns[0]} new unrolls for each update, fewer than arrive with "
            f"--replay_ratio={ratio:g}: raise that to at least {1 / columns[0]:.6g}, or the "
            f"queue's share"
        )
    return ""


def _parse_part(text: str) -> Part:
    kind, *rest = text.split(":")
    if kind not in KINDS:
        raise ValueError(f"{KINDS.unknown(kind)}; write each as KIND:SHARE:CAPACITY")
    numbers = [each for each in rest if "=" not in each]
    options = dict(each.split("=", 1) for each in rest if "=" in each)
    if not 1 <= len(numbers) <= 1 + (kind != QUEUE):
        form = "KIND:SHARE" if kind == QUEUE else "KIND:SHARE:CAPACITY"
        raise ValueError(f"{text}: write {form}, such as {kind}:0.5{':10000' * (kind != QUEUE)}")
    share = Option(0.0, most=1).read
    try:
        part = Part(kind, float(share(numbers[0])), 0, {})
    except ValueError as error:
        raise ValueError(f"{kind}'s share is {numbers[0]}: {error}") from None
    known = KINDS[kind].options
    if kind != QUEUE:
        capacity = numbers[1] if len(numbers) > 1 else f"{_CAPACITY}"
        if not capacity.isdecimal() or not 1 <= int(capacity) <= _MOST:
            raise ValueError(
                f"{kind}'s capacity is {capacity}: it must be a whole number of unrolls, up to "
                f"{_MOST:,}; --replay_max_gb limits their bytes"
            )
        part = part._replace(capacity=int(capacity))
        if not part.share:
            raise ValueError(f"{kind}'s share is 0: leave it out")
    if unknown := next((name for name in options if name not in known), ""):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ValueError(f"{kind} has no option {unknown}: {has}")
    values: dict[str, float | str] = {}
    for name, option in known.items():
        try:
            values[name] = option.read(options[name]) if name in options else option.default
        except ValueError as error:
            raise ValueError(f"{kind}'s {name} is {options[name]}: {error}") from None
    return part._replace(options=values)


def _read_file(path: Path) -> str:
    """Return the text that stands for a file of parts: a table of TOML for each, named by kind.

    Several parts of a kind are an array of tables.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"the file cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the file is no TOML: {error}") from None
    parts = []
    for kind, table in (
        (kind, each)
        for kind, found in tables.items()
        for each in (found if isinstance(found, list) else [found])
    ):
        if not isinstance(table, dict) or "share" not in table:
            raise ValueError(
                f"the file must have tables such as [uniform] with a share, not {kind}"
            )
        options = [f"{n}={v}" for n, v in table.items() if n not in {"share", "capacity"}]
        numbers = [f"{table[n]}" for n in ("share", "capacity") if n in table]
        parts.append(":".join([kind, *numbers, *options]))
    return ",".join(parts)
