"""Copies of users' modules in the folder of a run: what its algorithm and levels were.

`RunFolder` calls it at each start. A start that finds the same files makes no new copy.
"""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

MAX_FILES = 500  # of a copy
MAX_FILE, MAX_TOTAL = 1 << 20, 10 << 20  # bytes of one file, and of a copy


def keep(files: Mapping[str, Path], folder: Path) -> tuple[str, str]:
    """Copy files to a folder in `folder` that is named after their content.

    Return the name of the copy, and a sentence about it; both are empty if there are no files.
    Files of code come first, then small ones, as long as they fit. Raises OSError.
    """
    sizes = {name: path.stat().st_size for name, path in files.items()}
    kept: dict[str, bytes] = {}
    total = 0
    for name in sorted(files, key=lambda name: (not name.endswith(".py"), sizes[name])):
        if len(kept) < MAX_FILES and sizes[name] <= MAX_FILE and total + sizes[name] <= MAX_TOTAL:
            kept[name] = files[name].read_bytes()
            total += len(kept[name])
    if not kept:
        return "", ""
    digest = hashlib.sha256()
    for name in sorted(kept):
        digest.update(f"{name} {len(kept[name])} ".encode() + kept[name])
    copy = folder / digest.hexdigest()[:8]
    if not copy.exists():
        work = folder / "copying"
        shutil.rmtree(work, ignore_errors=True)
        for name, content in kept.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content)
        work.rename(copy)
    said = f"the source of your modules is kept in {copy} ({len(kept)} files, {total / 1e6:.2f} MB)"
    if left := sorted(files.keys() - kept.keys(), key=lambda name: -sizes[name]):
        said += f", without {left[0]}"
        said += f" and {len(left) - 1} more" * (len(left) > 1)
        said += f": a copy has at most {MAX_FILES} files of at most 1 MiB, and 10 MiB in all"
    return copy.name, said
