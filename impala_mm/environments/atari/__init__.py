"""Atari games, emulated and preprocessed in C++ by ale_py.

`environments.make` opens the games and `environments.levels` finds their ids. Apart from
`environments` and `runtime`, this package must import nothing of the library.
"""
