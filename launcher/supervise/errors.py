"""The base of the launcher's errors, which its programs print as one sentence."""


class LauncherError(Exception):
    """An error of the launcher; the message is a sentence that says what to do about it."""
