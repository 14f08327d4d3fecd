"""The errors of calls of other hosts."""


class HostUnavailable(Exception):
    """A host cannot be reached; the message names it and the reason."""


class OperationFailed(Exception):
    """A host could not do what it was asked to; the message is the host's."""
