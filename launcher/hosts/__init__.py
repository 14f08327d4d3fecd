"""The machines of a run as the frontend calls them: this one, and others over SSH.

It connects to hosts, calls them, copies files to and from them, and sets the project up on them.
`follow`, `checks` and `commands` use it; it must not import them.
"""
