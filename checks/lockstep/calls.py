"""One call into a target: with a time limit, and whatever it throws caught and put into one sentence."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STRAY = (Exception, SystemExit, GeneratorExit)
"""What a target may throw; KeyboardInterrupt is the user's."""


AGAIN = 0.05
"""Seconds after which a body that swallows the interruption gets the next one."""


class CallFailed(Exception):
    """The call hangs or raises: ``kind`` says which, the text is one sentence."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _TimeUp(BaseException):
    """Raised inside a call that takes too long; not an Exception, so that targets cannot swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the body after ``seconds``, and again while it goes on.

    Works in the main thread of the main interpreter only, and not inside native code.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    late = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal late
        late = True
        raise _TimeUp

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    try:
        yield
        if late:  # the body swallowed it, and went on
            raise _TimeUp
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def call(what: str, limit: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns; raises :class:`CallFailed`."""
    try:
        with time_limit(limit):
            return function(*arguments)
    except _TimeUp:
        raise CallFailed("hangs", f"{what} did not return within {limit:g} s") from None
    except STRAY as error:
        raise CallFailed("raises", f"{what} raised {told(error)}{_place(error)}") from error


def told(error: BaseException) -> str:
    """Type and text of an error, whatever its ``__str__`` does."""
    try:
        text = " ".join(str(error).split())
    except STRAY:
        text = "(its text cannot be shown)"
    return f"{type(error).__name__}: {text}"


def shown(value: object, most: int = 200) -> str:
    """A short ``repr``, whatever the value's own does."""
    try:
        text = repr(value)
    except STRAY:
        text = f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= most else text[:most] + "..."


def close(allocator: object, limit: float) -> bool:
    """Tell a target that it is no longer needed; False when its ``close`` fails."""
    method = getattr(allocator, "close", None)
    if method is None:
        return True
    try:
        call("close()", limit, method)
    except CallFailed:
        return False
    return True


def _place(error: BaseException) -> str:
    """File and line where the target raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    name = trace.tb_frame.f_code.co_filename.rsplit("/", 1)[-1]
    return f" (at {name}:{trace.tb_lineno})"
