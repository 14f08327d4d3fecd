"""Experiments: many runs, called trials, that share the hosts of a CSV.

A file says which (`file`), a search chooses their values (`search`; `optuna_search` and
`population` are kinds of it), a pool of the CSV's rows says where there is room (`pool`), and `run`
starts, follows and stops them. A trial is an ordinary run with a frontend of its own (`trial`).
This package must not import `commands`.
"""
