"""Who we are to a host: keys first, then the password, each told to the server in turn.

paramiko's own login ends where a server hangs up after too many keys: here the password is tried on
a second connection. What let us in is remembered, so that another machine can do the same.
"""

from collections.abc import Callable, Iterator

import paramiko
from paramiko.auth_strategy import AuthSource, AuthStrategy

from launcher.ssh.keys import Key
from launcher.ssh.ssh_config import Route, Unreachable

_PASSWORD_TYPES = {"password", "keyboard-interactive"}


class LoginRejected(Unreachable):
    """A host knows none of our keys, nor our password."""


class ConnectionClosed(Exception):
    """The server, in the midst of a login."""


class Login(AuthStrategy):
    """One login, which may need a second connection for its password."""

    def __init__(
        self, route: Route, keys: list[Key], password: str, troubles: list[str], remedy: str
    ):
        super().__init__(paramiko.SSHConfig())
        self._route, self._keys, self._password = route, keys, password
        self._troubles, self._remedy = list(troubles), remedy
        self._tried: list[str] = []
        self._allowed_types: list[str] = []
        # What let us in:
        self.key_text = ""
        self.password = ""

    def get_sources(self) -> Iterator[AuthSource]:
        """None: `authenticate` is ours."""
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> list:
        """Raises LoginRejected, Unreachable or ConnectionClosed."""
        name = self._route.username
        good, self._allowed_types = self._attempt(transport, lambda: transport.auth_none(name))
        if good and not self._allowed_types:
            return []
        if not self._try_keys(transport) and not self._try_password(transport):
            raise LoginRejected(self._describe_rejection())
        return []

    def can_retry_with_password(self) -> bool:
        """After a server hung up: whether there is one, and keys were in its way."""
        waits = bool(self._password and self._keys and "the password" not in self._tried)
        self._troubles.append(
            f"it hung up after {len(self._tried)} tries (name the one right key in ssh_key_path, "
            f"or in the SSH configuration with IdentitiesOnly)"
        )
        self._keys = []
        return waits

    def rejection(self) -> LoginRejected:
        """To be raised then."""
        return LoginRejected(self._describe_rejection())

    def _try_keys(self, transport: paramiko.Transport) -> bool:
        for each in self._keys:
            if "publickey" not in self._allowed_types:
                break
            self._tried.append(each.name)
            sent = each.key
            good, wants = self._attempt(
                transport,
                lambda sent=sent: transport.auth_publickey(self._route.username, sent),  # type: ignore[misc]
            )
            self._allowed_types = wants if good or wants else self._allowed_types
            if good:
                self.key_text = each.text
                if not wants:  # a server may want more than one thing
                    return True
        return False

    def _try_password(self, transport: paramiko.Transport) -> bool:
        if not self._password or not _PASSWORD_TYPES.intersection(self._allowed_types):
            if self._password:
                self._troubles.append("it takes no password")
            return False
        self._tried.append("the password")
        name, prompts = self._route.username, PromptAnswers(self._password)
        if "password" in self._allowed_types:
            good, wants = self._attempt(
                transport, lambda: transport.auth_password(name, self._password, fallback=False)
            )
        else:
            good, wants = self._attempt(
                transport, lambda: transport.auth_interactive(name, prompts)
            )
        self._troubles += [f"it also asks {prompt!r}" for prompt in prompts.unanswered]
        self.password = self._password
        return good and not wants

    def _attempt(
        self, transport: paramiko.Transport, attempt: Callable[[], list[str]]
    ) -> tuple[bool, list[str]]:
        """Whether the server agrees, and what it takes from here on, as far as it says."""
        try:
            return True, attempt()
        except paramiko.BadAuthenticationType as error:
            return False, error.allowed_types
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not transport.is_active():
                raise ConnectionClosed from None
            if "timeout" in str(error):
                raise Unreachable(
                    f"{self._route.display_name} gave no answer to the login: is it overloaded?"
                ) from None
            return False, []

    def _describe_rejection(self) -> str:
        who = f"{self._route.display_name} does not let {self._route.username} in"
        tried = f"tried {', '.join(self._tried)}" if self._tried else "there was nothing to try"
        takes = f"it takes {' or '.join(self._allowed_types)}" if self._allowed_types else ""
        reasons = "; ".join(filter(None, [tried, *dict.fromkeys(self._troubles), takes]))
        return f"{who}: {reasons}; {self._remedy}"


class PromptAnswers:
    """Answers a server's questions: the first, if it is the only one, with the password."""

    def __init__(self, password: str):
        self._password = password
        self.unanswered: list[str] = []

    def __call__(self, title: str, text: str, prompts: list[tuple[str, bool]]) -> list[str]:
        """As paramiko asks."""
        if len(prompts) == 1 and self._password:
            password, self._password = self._password, ""
            return [password]
        self.unanswered += [prompt.strip() for prompt, _ in prompts]
        return ["" for _ in prompts]
