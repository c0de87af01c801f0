"""Errors of the package.

EnginePatchError
├── SettingsError              an environment variable has a value that means nothing
├── UnsupportedVersionError    the installed vLLM is not one that the patch was proven on
├── FingerprintMismatchError   the version fits but the source that the patch relies on is different
└── PhaseError                 a request was scheduled against the rule of the pipeline's phases
"""


class EnginePatchError(RuntimeError):
    """Base of all errors of this package; the message says what, where and what to do."""


class SettingsError(EnginePatchError):
    """An environment variable has a value that means nothing."""


class UnsupportedVersionError(EnginePatchError):
    """The installed vLLM is not one that the patch was proven on."""


class FingerprintMismatchError(EnginePatchError):
    """The source that the patch relies on differs from the one it was proven on, or is gone."""


class PhaseError(EnginePatchError):
    """A request was scheduled against the rule of the pipeline's phases: going on could give a wrong text."""
