"""The cache of DeepMind Lab's compiled levels, which all actors share.

The engine compiles a map before an episode whose map is new, which takes seconds. It asks `fetch`
for the map by a key of its own, and gives a map that it has compiled to `write`. The map of a key
is a file in a folder: local, or on any file system that tf.io.gfile reads (gs://bucket/levels). It
is named by the md5 of the key, of which the first three characters are a folder, as in SEED RL,
whose caches can be used.

To delete the oldest maps until the rest fits into a number of gigabytes:

    python -m impala_mm.environments.level_cache FOLDER GIGABYTES
"""

import hashlib
import os
import posixpath
import shutil
import sys
import types
import uuid
from typing import Any

# The functions of tf.io.gfile that a cache needs, for local files: TensorFlow takes 300 MB.
_LOCAL = types.SimpleNamespace(
    exists=os.path.exists,
    makedirs=lambda folder: os.makedirs(folder, exist_ok=True),
    copy=lambda source, target, overwrite: shutil.copyfile(source, target),
    rename=lambda source, target, overwrite: os.replace(source, target),
)


class LevelCache:
    """The object that `deepmind_lab.Lab` takes as its level_cache."""

    def __init__(self, folder: str):
        """Use a folder, which need not exist yet."""
        self._folder = folder
        self._files: Any = _LOCAL
        self._error: type[Exception] = OSError
        if "://" in folder:
            import tensorflow as tf  # noqa: PLC0415

            self._files, self._error = tf.io.gfile, tf.errors.OpError

    def path(self, key: str) -> str:
        """Return the path of a key's map."""
        digest = hashlib.md5(key.encode(), usedforsecurity=False).hexdigest()
        return posixpath.join(self._folder, digest[:3], digest[3:])

    def fetch(self, key: str, pk3_path: str) -> bool:
        """Copy the map of a key to `pk3_path`; return whether there is one."""
        try:
            self._files.copy(self.path(key), pk3_path, overwrite=True)
        except self._error:
            return False
        return True

    def write(self, key: str, pk3_path: str) -> None:
        """Add the map at `pk3_path`; readers find a complete file or none.

        A cache that cannot be written, on a full disk for example, costs time, and no game.
        """
        path = self.path(key)
        partial = f"{path}.{uuid.uuid4().hex}"
        try:
            if not self._files.exists(path):
                self._files.makedirs(posixpath.dirname(path))
                self._files.copy(pk3_path, partial, overwrite=True)
                self._files.rename(partial, path, overwrite=True)
        except self._error as error:
            print(f"the level cache {self._folder} cannot be written: {error}", file=sys.stderr)


def clean(folder: str, most_bytes: float) -> tuple[int, int]:
    """Delete the oldest files until the rest has at most this size; return (deleted, kept)."""
    import tensorflow as tf  # noqa: PLC0415

    files, found = tf.io.gfile, []
    for path in files.glob(posixpath.join(folder, "?" * 3, "*")):
        try:
            status = files.stat(path)
        except tf.errors.NotFoundError:  # an actor has just given it its final name
            continue
        found.append((status.mtime_nsec, status.length, path))
    found.sort()
    size, deleted = sum(length for _, length, _ in found), 0
    while size > most_bytes:
        _, length, path = found[deleted]
        files.remove(path)
        size, deleted = size - length, deleted + 1
    return deleted, len(found) - deleted


def main(arguments: list[str]) -> None:
    """Clean the cache that the command line names."""
    try:
        folder, gigabytes = arguments
        most = float(gigabytes) * 1e9
        if not most >= 0:
            raise ValueError
    except ValueError:
        sys.exit("usage: python -m impala_mm.environments.level_cache FOLDER GIGABYTES")
    deleted, kept = clean(folder, most)
    print(f"{folder}: {deleted} maps were deleted, {kept} are left")


if __name__ == "__main__":
    main(sys.argv[1:])
