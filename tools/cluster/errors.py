"""The errors of the embedded cluster, one tree.

Owns the exception classes only and imports nothing of this package.

    ClusterError            anything a user can act on; printed as one line, never as a traceback
      PrivilegeError        root is missing
      SettingsError         an address range, port or name cannot be used
      MissingToolError      a program of the host (Go, apt-get, openssl) is missing
      CommandError          a command failed or ran past its deadline
      StartError            a component did not become ready in time
"""

from pathlib import Path


class ClusterError(Exception):
    """A failure with a one-line cause and, where there is one, the log that tells more."""

    def __init__(self, cause: str, *, log: Path | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.log = log

    def __str__(self) -> str:
        return self.cause if self.log is None else f"{self.cause} (log: {self.log})"


class PrivilegeError(ClusterError):
    """The command needs root."""


class SettingsError(ClusterError):
    """A setting cannot be used on this host."""


class MissingToolError(ClusterError):
    """A program that the host must bring is missing or too old."""


class CommandError(ClusterError):
    """A command ended with an error or was stopped at its deadline."""


class StartError(ClusterError):
    """A component ended or did not answer before its deadline."""
