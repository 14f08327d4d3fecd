"""The errors of the library, for callers in Python; the programs print them as one sentence."""


class ImpalaError(Exception):
    """An error of impala_mm; the message is a sentence that says what to do about it."""


class UserMistake(ImpalaError):
    """A mistake of the user's; the message is one sentence that says what to do about it.

    It is printed without a traceback. An algorithm's `make` may raise it, for example because a
    flag names a file that does not exist.
    """


class BadSettings(ImpalaError):
    """Settings are wrong, do not fit together, or do not fit the environment or the folder."""


class BadEnvironment(ImpalaError):
    """An environment cannot be found, made or passed to other processes."""


class BadCheckpoint(ImpalaError):
    """A checkpoint is missing or damaged, or its network does not fit."""


class ForeignPackage(ImpalaError):
    """Another package has the name of a package of impala_mm, and imports find it first."""


class TrainingFailed(ImpalaError):
    """A run ended because of an error; the message is the first error of any of its processes."""
