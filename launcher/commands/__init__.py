"""The commands of the frontend, one function per flag: launch, status, stop, apply and so on.

`run_experiment_mm_raw.py` calls `dispatch`. No other package may import this one.
"""
