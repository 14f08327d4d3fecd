"""The settings: every flag of training with its default and its check.

Both programs and every process parse their flags with this package once and pass on a frozen
`Config`. It must import nothing from the rest of the library, and no TensorFlow.
"""
