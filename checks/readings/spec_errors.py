"""What a user asked of the spec's readings that cannot be done: one line and exit code 2."""

from __future__ import annotations


class AskedWrong(ValueError):
    """The question names something that does not exist, or cannot be built as asked."""


class UnknownName(AskedWrong):
    """There is no theorem of that name."""


class UnknownMutant(AskedWrong):
    """There is no mutant of that name."""


class UsageError(AskedWrong):
    """The exploration cannot be built as asked."""


class CheckpointError(AskedWrong):
    """The file is not a checkpoint of this exploration."""
