"""Atari games, emulated and preprocessed in C++ by ale_py.

`environments.make` opens them; `environments.levels` finds their ids.
Must import nothing outside `environments`, but `runtime`.
"""
