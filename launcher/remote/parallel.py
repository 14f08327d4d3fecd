"""The same thing done for many at the same time; Ctrl-C waits for none of them."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

AT_ONCE = 48
Item = TypeVar("Item")


def each(
    function: Callable[[Item], Any], items: Sequence[Item], at_once: int = AT_ONCE
) -> Iterator[tuple[int, Any]]:
    """(place in `items`, what it returned or the exception it raised), as they are done."""
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for i in range(len(items)):
        todo.put(i)

    def work() -> None:
        while True:
            try:
                i = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((i, function(items[i])))
            except Exception as error:
                done.put((i, error))

    # An executor's threads would be waited for when the program ends.
    for _ in range(min(at_once, len(items))):
        threading.Thread(target=work, daemon=True).start()
    for _ in items:
        yield done.get()


def in_order(
    function: Callable[[Item], Any], items: Sequence[Item], at_once: int = AT_ONCE
) -> list[Any]:
    """What each returned; raises the first exception."""
    found = dict(each(function, items, at_once))
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    return [found[i] for i in range(len(items))]
