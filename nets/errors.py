"""What a user may get wrong about networks: one sentence each, to be shown as it stands."""


class UnknownNetwork(ValueError):
    """No network has this name."""


class Unsuitable(ValueError):
    """The network cannot read such observations."""
