"""Ctrl-C as a request that the training loop answers between two steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def interruptible(saves: bool = True) -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C only sets a flag; a second one interrupts at once.

    SIGTERM, with which schedulers and launchers end a process, sets the flag too. Outside the main
    thread, where signals do not arrive, the flag is never set.

    Args:
        saves: whether there is something to save before the end; if not, SIGTERM is left alone.

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

    kinds = (signal.SIGINT, signal.SIGTERM) if saves else (signal.SIGINT,)
    before = {kind: signal.signal(kind, on_signal) for kind in kinds}
    try:
        yield pressed.is_set
    finally:
        for kind, handler in before.items():
            signal.signal(kind, signal.SIG_DFL if handler is None else handler)
