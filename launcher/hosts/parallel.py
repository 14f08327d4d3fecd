"""Calls a function for many items in parallel threads, for which Ctrl-C does not wait."""

import collections
import concurrent.futures
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

_MAX_THREADS = 48
Item = TypeVar("Item")


def start_calls(
    function: Callable[[Item], Any], items: Iterable[Item], max_threads: int = _MAX_THREADS
) -> list[Future[Any]]:
    """Begin to call `function` for each item; return the calls in the order of the items."""
    calls = [(Future[Any](), item) for item in items]
    todo = collections.deque(calls)

    def work() -> None:
        while todo:
            try:
                call, item = todo.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                call.set_result(function(item))
            except Exception as error:  # it is raised where the result is asked for
                call.set_exception(error)

    # Unlike an executor's threads, daemon threads do not delay the program's exit.
    for _ in calls[:max_threads]:
        threading.Thread(target=work, daemon=True).start()
    return [call for call, _ in calls]


def map_ordered(
    function: Callable[[Item], Any], items: Iterable[Item], max_threads: int = _MAX_THREADS
) -> list[Any]:
    """Call `function` for each item and return the results in order; raise the first exception."""
    calls = start_calls(function, items, max_threads)
    concurrent.futures.wait(calls)
    return [call.result() for call in calls]
