"""Calls a function for many items in parallel threads, for which Ctrl-C does not wait."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

MAX_THREADS = 48
Item = TypeVar("Item")


def map_unordered(
    function: Callable[[Item], Any], items: Sequence[Item], max_threads: int = MAX_THREADS
) -> Iterator[tuple[int, Any]]:
    """Call `function` for each item; yield (index, result or exception) as the calls finish."""
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

    # Unlike an executor's threads, daemon threads do not delay the program's exit.
    for _ in range(min(max_threads, len(items))):
        threading.Thread(target=work, daemon=True).start()
    for _ in items:
        yield done.get()


def map_ordered(
    function: Callable[[Item], Any], items: Sequence[Item], max_threads: int = MAX_THREADS
) -> list[Any]:
    """Call `function` for each item and return the results in order; raise the first exception."""
    found = dict(map_unordered(function, items, max_threads))
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    return [found[i] for i in range(len(items))]
