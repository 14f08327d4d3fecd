"""The login at a host: tries the keys first, then the password.

paramiko's own login ends if a server hangs up after too many keys; this one then tries the password
on a second connection.
"""

from collections.abc import Callable, Iterator

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy

from launcher.hosts.keys import Key
from launcher.hosts.ssh_config import Route, Unreachable

_PASSWORD_TYPES = {"password", "keyboard-interactive"}


class LoginRejected(Unreachable):
    """A host accepts none of our keys, nor our password."""


class ConnectionClosed(Exception):
    """The server closed the connection during a login."""


class Login(AuthStrategy):
    """One login at a host, which may need a second connection for the password.

    `troubles`: why some keys cannot be tried. `remedy`: how to fix a login that is rejected.
    """

    def __init__(
        self, route: Route, keys: list[Key], password: str, troubles: list[str], remedy: str
    ):
        super().__init__(paramiko.SSHConfig())
        self._route, self._keys, self._password = route, keys, password
        self._troubles, self._remedy = list(troubles), remedy
        self._tried: list[str] = []
        self.accepted = "no key"  # what the host has accepted
        self._allowed_types: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """Return nothing: `authenticate` does not use paramiko's sources."""
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> list:
        """Log in; raise LoginRejected, Unreachable or ConnectionClosed."""
        name = self._route.username
        accepted, wanted = self._attempt(transport, lambda: transport.auth_none(name))
        self._allowed_types = wanted
        if accepted and not wanted:
            return []
        if not self._try_keys(transport) and not self._try_password(transport):
            raise LoginRejected(self._describe_rejection())
        self.accepted = self._tried[-1]
        return []

    def can_retry_with_password(self) -> bool:
        """Return, after the server hung up, whether the keys kept the password from being tried."""
        untried = bool(self._password and self._keys and "the password" not in self._tried)
        self._troubles.append(
            f"it hung up after {len(self._tried)} tries (name the right key in ssh_key_path, or in "
            f"the SSH configuration with IdentitiesOnly)"
        )
        self._keys = []
        return untried

    def rejection(self) -> LoginRejected:
        """Return the error that says what was tried."""
        return LoginRejected(self._describe_rejection())

    def _try_keys(self, transport: paramiko.Transport) -> bool:
        for each in self._keys:
            if "publickey" not in self._allowed_types:
                break
            self._tried.append(each.name)
            sent = each.key
            accepted, wanted = self._attempt(
                transport,
                lambda sent=sent: transport.auth_publickey(self._route.username, sent),  # type: ignore[misc]
            )
            self._allowed_types = wanted if accepted or wanted else self._allowed_types
            if accepted and not wanted:  # some servers want a key and a password
                return True
        return False

    def _try_password(self, transport: paramiko.Transport) -> bool:
        if not self._password or not _PASSWORD_TYPES.intersection(self._allowed_types):
            if self._password:
                self._troubles.append("it accepts no password")
            return False
        self._tried.append("the password")
        name, prompts = self._route.username, PromptAnswers(self._password)
        if "password" in self._allowed_types:
            accepted, wanted = self._attempt(
                transport, lambda: transport.auth_password(name, self._password, fallback=False)
            )
        else:
            accepted, wanted = self._attempt(
                transport, lambda: transport.auth_interactive(name, prompts)
            )
        self._troubles += [f"it also asks {prompt!r}" for prompt in prompts.unanswered]
        return accepted and not wanted

    def _attempt(
        self, transport: paramiko.Transport, attempt: Callable[[], list[str]]
    ) -> tuple[bool, list[str]]:
        """Return whether the server accepts, and which kinds of login it wants next."""
        try:
            return True, attempt()
        except paramiko.BadAuthenticationType as error:
            return False, error.allowed_types
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not transport.is_active():
                raise ConnectionClosed from None
            if "timeout" in str(error):
                raise Unreachable(
                    f"{self._route.display_name} did not answer the login: is it overloaded?"
                ) from None
            return False, []

    def _describe_rejection(self) -> str:
        who = f"{self._route.display_name} does not let {self._route.username} in"
        tried = (
            f"tried {', '.join(self._tried)}"
            if self._tried
            else "there is no key or password to try"
        )
        takes = f"it accepts {' or '.join(self._allowed_types)}" if self._allowed_types else ""
        reasons = "; ".join(filter(None, [tried, *dict.fromkeys(self._troubles), takes]))
        return f"{who}: {reasons}; {self._remedy}"


class PromptAnswers:
    """Answers to a server's questions: a single first question gets the password."""

    def __init__(self, password: str):
        self._password = password
        self.unanswered: list[str] = []

    def __call__(self, title: str, text: str, prompts: list[tuple[str, bool]]) -> list[str]:
        """Return the answers to `prompts`; paramiko calls this."""
        if len(prompts) == 1 and self._password:
            password, self._password = self._password, ""
            return [password]
        self.unanswered += [prompt.strip() for prompt, _ in prompts]
        return ["" for _ in prompts]
