"""Settings: every flag, its default and its check.

Both programs and every process read the flags here once, and pass on a frozen `Config`.
Must import nothing of the rest of the library, and no TensorFlow.
"""
