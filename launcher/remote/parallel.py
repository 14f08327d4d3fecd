"""The same thing done for many at the same time; Ctrl-C waits for none of them."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

MAX_THREADS = 48
Item = TypeVar("Item")


def map_unordered(
    function: Callable[[Item], Any], items: Sequence[Item], max_threads: int = MAX_THREADS
) -> Iterator[tuple[int, Any]]:
    """(index in `items`, what it returned or the exception it raised), as they are done."""
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
    for _ in range(min(max_threads, len(items))):
        threading.Thread(target=work, daemon=True).start()
    for _ in items:
        yield done.get()


def map_ordered(
    function: Callable[[Item], Any], items: Sequence[Item], max_threads: int = MAX_THREADS
) -> list[Any]:
    """What each returned; raises the first exception."""
    found = dict(map_unordered(function, items, max_threads))
    for result in found.values():
        if isinstance(result, Exception):
            raise result
    return [found[i] for i in range(len(items))]
