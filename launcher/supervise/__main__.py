"""Runs a module of this package by its name, from any working directory: see `programs`.

    python -ES launcher/supervise launcher.supervise.supervisor TASK.json

The folder may be one of an archive. Neither the working directory, which may have modules with
names of Python's own, nor this folder is where modules are imported from.
"""

import os
import runpy
import sys

sys.path[0] = os.path.abspath(f"{__file__}/../../..")
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
