"""What can go wrong while images are made.

ImageError              base: its text says what, where and what to do
├── ToolMissingError    a program is not there and could not be installed
└── StepFailedError     a command failed or ran too long; names the log file
"""


class ImageError(Exception):
    """Base of the errors of this package."""


class ToolMissingError(ImageError):
    """A program that a build needs is missing."""


class StepFailedError(ImageError):
    """A step of a build failed; the message names the step, the cause's last lines and the log file."""
