"""A user of SSH for tests, with their own configuration, known hosts and servers."""

import pytest
from ssh_servers import SSHD, Obedient, Sshd, key

from launcher.hosts import connection
from launcher.hosts.ssh_config import Target, find_route
from launcher.plan.settings import SshSettings

STRANGE = 'it\'s "a" pass wörd; $(x) \\'
needs_sshd = pytest.mark.skipif(not SSHD, reason="sshd is missing: install openssh-server")


def connect(target, settings):
    """Connect to the host of a row of the CSV."""
    return connection.connect(find_route(target, settings), target.ssh_password)


class User:
    """A user with their own SSH configuration, and servers that end with the test."""

    def __init__(self, folder):
        self.folder, self.known, self.config = folder, folder / "known hosts", folder / "config"
        self.settings = SshSettings(str(self.config))
        self.wants()
        self._ends = []

    def wants(self, *lines):
        """Write these lines before the common ones into the configuration; the first one counts."""
        common = [
            "Host *",
            f'UserKnownHostsFile "{self.known}"',
            "GlobalKnownHostsFile none",
            "IdentityFile none",
            "IdentityAgent none",
        ]
        self.config.write_text("\n".join([*lines, *common]) + "\n")

    def knows(self, *lines):
        """Add lines to the known hosts."""
        with self.known.open("a") as file:
            file.writelines(lines)

    def sshd(self, *options, name="sshd", lets_in=(), **more):
        """Start an sshd whose key the user knows."""
        server = self._to_end(Sshd(self.folder / name, *options, **more))
        server.lets_in(*lets_in)
        self.knows(server.known(next(iter(server.keys))))
        return server

    def obedient(self, *arguments, **more):
        """Start an `Obedient` server whose key the user knows."""
        server = self._to_end(Obedient(*arguments, **more))
        self.knows(server.known())
        return server

    def key(self, name="id", *arguments):
        return key(self.folder / name, *arguments)

    def enters(self, server, path="", password="", ip="127.0.0.1", settings=None):
        """Connect to a server, and return the connection, which is closed with the test."""
        target = Target(ip, server.port, "", password, str(path))
        entered = connect(target, settings or self.settings)
        self._ends.append(entered.close)
        return entered

    def is_refused(self, kind, server, *arguments, **more):
        """Return the error of a refused connection; it must be one line."""
        with pytest.raises(kind) as caught:
            self.enters(server, *arguments, **more)
        said = str(caught.value)
        assert "\n" not in said
        return said

    def end(self):
        for end in reversed(self._ends):
            end()

    def _to_end(self, server):
        self._ends.append(server.end)
        return server


def says(connection, command="echo hello"):
    """Return the output of a command on the other host."""
    return connection.open_program(command).makefile("rb").read().decode().strip()
