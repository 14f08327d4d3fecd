"""A batch that one thread prepares while another trains on the batch before it."""

import queue

from impala_mm.data.trajectory import Batch


class OneAhead:
    """A place for the next batch, and for the error of what prepares it."""

    def __init__(self) -> None:
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._failure: BaseException | None = None

    def next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None after `timeout` seconds; raise an error of `fail`."""
        if self._failure:
            raise self._failure
        try:
            batch = self._ready.get(timeout=timeout)
        except queue.Empty:
            return None
        self._ready.task_done()
        return batch

    def put(self, batch: Batch) -> None:
        """Offer a batch, and wait until it is taken: policy lag grows while unrolls wait."""
        self._ready.put(batch)
        self._ready.join()

    def fail(self, error: BaseException) -> None:
        """Let each later call of `next` raise this error."""
        self._failure = error
