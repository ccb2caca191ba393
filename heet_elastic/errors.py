"""The errors of heet-elastic: one class per reaction. The message is the sentence that a user reads.

Losing a race is no error (see `heet_elastic.store.api.Lost`), and neither is a job that waits.
"""


class HeetError(Exception):
    """Base of every error that heet raises on purpose. `exit_code` is what a command ends with."""

    exit_code = 1


class UsageError(HeetError):
    """A setting, argument or file is wrong. Reaction: print the sentence, which names the thing, and end with 2."""

    exit_code = 2


class StoreUnavailableError(HeetError):
    """etcd did not answer in time, so what became of the call is *unknown*. Reaction: read again before deciding."""

    exit_code = 3


class StoreRefusedError(HeetError):
    """etcd answered, and will not serve us (user, password, role, certificate, version, not etcd at all).

    Reaction: a person has to change something; trying again does not help.
    """

    exit_code = 4


class RecordError(HeetError):
    """A value in the store cannot be read as the record that its key calls for. Reaction: report it, skip it."""


class RefusedError(HeetError):
    """This agent may not take part in this job (another script or limits under a live id). Reaction: end with 5."""

    exit_code = 5


class WaitTimeoutError(HeetError):
    """`join_timeout` or `allocation_timeout` has passed. Reaction: end with 6, saying what was missing."""

    exit_code = 6


class CancelledError(HeetError):
    """Somebody cancelled the job. Reaction: stop the workers and end with 7."""

    exit_code = 7


class UnsupportedTorchError(HeetError):
    """This torch lacks a private name that heet relies on. Reaction: name the version and the name, end with 8."""

    exit_code = 8
