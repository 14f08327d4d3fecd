"""Errors in a user's choice of network; their messages are shown to the user as they are."""


class UnknownNetwork(ValueError):
    """An error for a name that no network has."""


class Unsuitable(ValueError):
    """An error for observations that the network cannot read."""
