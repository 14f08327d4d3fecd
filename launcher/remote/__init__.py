"""The machines of a run as the frontend calls them: this one, and others over SSH.

`running`, `transfer`, `deploy` and `checks` use it. It must not import any of these.
"""
