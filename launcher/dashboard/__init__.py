"""The page in the browser that shows runs, and what other programs read of them over HTTP.

`--dashboard` of both programs calls `serve`. It only reads files of runs and their status, so that
no run notices it. It must not import TensorFlow, nor `commands`: what `--dashboard_control`
changes, the frontend's own commands do, in processes of their own.
"""
