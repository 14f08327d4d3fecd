"""A run's folder that changes as its processes change it, with checkpoints; for tests of copies."""

import hashlib
import json
import shutil


class Folder:
    """A run's folder, with the changes that its processes make."""

    def __init__(self, path):
        self.path = path
        path.mkdir()

    def _room(self, name):
        path = self.path / name
        for above in path.relative_to(self.path).parents:
            if (self.path / above).is_file() or (self.path / above).is_symlink():
                (self.path / above).unlink()
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.is_symlink():
            path.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def append(self, name, data):
        with self._room(name).open("ab") as file:
            file.write(data)

    def rewrite(self, name, data):
        self._room(name).write_bytes(data)

    def replace(self, name, data):
        path = self._room(name)
        work = path.with_name("work")
        work.write_bytes(data)
        work.replace(path)

    def rotate(self, name, data):
        path = self._room(name)
        if path.exists() and name.endswith(".log"):
            path.replace(path.with_name(f"{path.name}.1"))
            path.write_bytes(data)

    def trim(self, name, data):
        path = self._room(name)
        if path.exists() and name.endswith(".log"):
            shutil.copyfile(path, path.with_name(f"{path.name}.1"))
            path.write_bytes(data)

    def remove(self, name, _):
        self._room(name).unlink(missing_ok=True)

    def link(self, name, _):
        path = self._room(name)
        if path.name == "d":
            path.unlink(missing_ok=True)
            path.symlink_to("settings.json")

    def save(self, name, data, episode_return=None, milestone=False):
        """Write a checkpoint as learners do."""
        folder = self.path / "checkpoints" / f"{len(name):010d}"
        if folder.exists():
            shutil.rmtree(folder)
        save(folder, data, episode_return, milestone)

    def unsave(self, name, _):
        shutil.rmtree(self.path / "checkpoints" / f"{len(name):010d}", ignore_errors=True)


def save(folder, data, episode_return=None, milestone=False):
    folder.mkdir(parents=True)
    files = {}
    for name, content in (("variables.data", data), ("variables.index", data[::-1])):
        (folder / name).write_bytes(content)
        files[name] = [len(content), hashlib.sha256(content).hexdigest()]
    about = {"files": files, "episode_return": episode_return, "milestone": milestone}
    (folder / "about.json").write_text(json.dumps(about))


def whole(folder):
    """Return True if all visible checkpoints are complete; fail otherwise."""
    for path in (folder / "checkpoints").glob("[0-9]*"):
        files = json.loads((path / "about.json").read_text())["files"]
        for name, written in files.items():
            content = (path / name).read_bytes()
            assert [len(content), hashlib.sha256(content).hexdigest()] == written
    return True
