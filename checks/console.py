"""Where the program writes: tables for people, one line for errors, and no surprises when the reader goes away."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDE = 140
"""Columns of a report that does not go to a terminal."""


class QuietConsole(Console):
    """A console whose broken pipe changes no exit code: the verdict stands, also when nobody reads it."""

    def on_broken_pipe(self) -> None:
        """Write the rest nowhere."""
        self.quiet = True
        silence_stdout()


def stdout_console() -> Console:
    """Standard output, for people; wide where it is no terminal."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return QuietConsole(highlight=False, soft_wrap=True, width=None if terminal else WIDE)


def stderr_console() -> Console:
    """Standard error: progress and messages."""
    return QuietConsole(stderr=True, highlight=False, soft_wrap=True)


def silence_stdout() -> None:
    """Whatever is still to be written to standard output goes nowhere, the interpreter's last flush included."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
