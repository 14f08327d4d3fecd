"""The login at a host: tries the keys first, then the password.

paramiko's own login ends if a server hangs up after too many keys; this one then tries the password
on a second connection.
"""

from collections.abc import Callable
from functools import partial

import paramiko

from launcher.hosts.keys import Key
from launcher.hosts.ssh_config import HostUnavailable, Route

SSH_ERRORS = (paramiko.SSHException, EOFError, OSError)  # what paramiko raises


class LoginRejected(HostUnavailable):
    """A host accepts none of our keys, nor our password."""


class PasswordUntried(Exception):
    """The server hung up after too many keys; on another connection it may take the password."""


class Login:
    """One login at a host, which may need a second connection for the password.

    `troubles`: why some keys cannot be tried. `remedy`: how to fix a login that is rejected.
    """

    def __init__(
        self, route: Route, keys: list[Key], password: str, troubles: list[str], remedy: str
    ):
        self._route, self._keys, self._password = route, keys, password
        self._troubles, self._remedy = list(troubles), remedy
        self._tried: list[str] = []
        self._answered = False  # a question of keyboard-interactive, with the password
        self._allowed: list[str] = []  # the kinds of login that the server accepts next

    def log_in(self, transport: paramiko.Transport) -> str:
        """Log in; return what the host has accepted: a key's name, or "the password".

        Raise LoginRejected, PasswordUntried or HostUnavailable.
        """
        username = self._route.username
        if self._is_accepted(transport, partial(transport.auth_none, username)):
            return "no key"
        for name, key in self._keys:
            if "publickey" not in self._allowed:  # it has accepted a key, and wants a password, too
                break
            self._tried.append(name)
            if self._is_accepted(transport, partial(transport.auth_publickey, username, key)):
                return name
        if not self._password:
            raise self._rejection()
        if "password" in self._allowed:
            attempt = partial(transport.auth_password, username, self._password, fallback=False)
        elif "keyboard-interactive" in self._allowed:
            attempt = partial(transport.auth_interactive, username, self._answer)
        else:
            self._troubles.append("it accepts no password")
            raise self._rejection()
        self._tried.append("the password")
        if self._is_accepted(transport, attempt):
            return "the password"
        raise self._rejection()

    def _answer(self, title: str, text: str, prompts: list[tuple[str, bool]]) -> list[str]:
        """Answer a server's questions: a single first question gets the password."""
        if len(prompts) == 1 and not self._answered:
            self._answered = True
            return [self._password]
        self._troubles += [f"it also asks {prompt.strip()!r}" for prompt, _ in prompts]
        return ["" for _ in prompts]

    def _is_accepted(self, transport: paramiko.Transport, attempt: Callable[[], list[str]]) -> bool:
        """Return whether an attempt completes the login."""
        try:
            self._allowed = attempt()
            return not self._allowed
        except paramiko.BadAuthenticationType as error:
            self._allowed = error.allowed_types
        except SSH_ERRORS as error:
            if not transport.is_active():
                raise self._after_hanging_up() from None
            if "timeout" in str(error):
                raise HostUnavailable(
                    f"{self._route.display_name} did not answer the login: is it overloaded?"
                ) from None
        return False

    def _after_hanging_up(self) -> Exception:
        self._troubles.append(
            f"it hung up after {len(self._tried)} tries (name the right key in ssh_key_path, or in "
            f"the SSH configuration with IdentitiesOnly)"
        )
        untried = self._password and self._keys and "the password" not in self._tried
        self._keys = []
        return PasswordUntried() if untried else self._rejection()

    def _rejection(self) -> LoginRejected:
        tried = f"tried {', '.join(self._tried)}"
        reasons = [tried if self._tried else "there is no key or password to try"]
        reasons += dict.fromkeys(self._troubles)
        if self._allowed:
            reasons.append(f"it accepts {' or '.join(self._allowed)}")
        return LoginRejected(
            f"{self._route.display_name} does not let {self._route.username} in: "
            f"{'; '.join([*reasons, self._remedy])}"
        )
