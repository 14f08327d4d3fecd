"""What the frontend does, one function per flag: launch, status, stop, apply, fetch.

`run_experiment_mm_raw.py` calls `dispatch`.
Nothing else imports it.
"""
