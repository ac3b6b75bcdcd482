"""Ctrl-C as a request that the training loop answers between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C only sets a flag; a second one interrupts at once.

    SIGTERM, with which schedulers and launchers end a process, sets the flag too. Outside the main
    thread, where signals do not arrive, the flag is never set.

    Yields:
        A function that tells whether Ctrl-C was pressed.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def on_signal(number, frame):
        if pressed.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        pressed.set()

    before = {kind: signal.signal(kind, on_signal) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield pressed.is_set
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)
