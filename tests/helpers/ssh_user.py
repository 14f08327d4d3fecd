"""A user of SSH, for tests: with a configuration, known hosts and servers of their own."""

import pytest
from ssh_servers import SSHD, Obedient, Sshd, key

from launcher.ssh.connection import Settings, Target, connect

STRANGE = 'it\'s "a" pass wörd; $(x) \\'
needs_sshd = pytest.mark.skipif(not SSHD, reason="there is no sshd here: openssh-server has it")


class User:
    """With an SSH configuration of their own, and servers that end with the test."""

    def __init__(self, folder):
        self.folder, self.known, self.config = folder, folder / "known hosts", folder / "config"
        self.settings = Settings(str(self.config))
        self.wants()
        self._ends = []

    def wants(self, *lines):
        """In the configuration; what stands first in it counts."""
        common = [
            "Host *",
            f'UserKnownHostsFile "{self.known}"',
            "GlobalKnownHostsFile none",
            "IdentityFile none",
            "IdentityAgent none",
        ]
        self.config.write_text("\n".join([*lines, *common]) + "\n")

    def knows(self, *lines):
        """Hosts, besides those it knows."""
        with self.known.open("a") as file:
            file.writelines(lines)

    def sshd(self, *options, name="sshd", lets_in=(), **more):
        """Known, until somebody changes that."""
        server = self._to_end(Sshd(self.folder / name, *options, **more))
        server.lets_in(*lets_in)
        self.knows(server.known(next(iter(server.keys))))
        return server

    def obedient(self, *arguments, **more):
        """Likewise."""
        server = self._to_end(Obedient(*arguments, **more))
        self.knows(server.known())
        return server

    def key(self, name="id", *arguments):
        return key(self.folder / name, *arguments)

    def enters(self, server, path="", password="", ip="127.0.0.1", settings=None):
        """The connection to a server; closed with the test."""
        target = Target(ip, server.port, "", password, str(path))
        connection = connect(target, settings or self.settings)
        self._ends.append(connection.client.close)
        return connection

    def is_refused(self, kind, server, *arguments, **more):
        """What is said: one sentence, about the host."""
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


def says(client, command="echo hello"):
    """What a command prints on the other side."""
    return client.exec_command(command, timeout=10)[1].read().decode().strip()
