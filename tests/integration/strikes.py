"""Interrupts at each place where CPython looks for signals.

Nothing is collected meanwhile: that would strike what other tests left to be finalized.
"""

import gc
import signal
import sys


class Strike:
    """Presses Ctrl-C, or raises another signal, after a module's n-th call of a C function.

    There, and at the start of Python's own functions, is where CPython looks for signals.
    """

    def __init__(self, modules, number, signal_number=signal.SIGINT, *, starts=False):
        """Strike at the n-th place; with `starts` the functions' starts count, too."""
        self.events = {"c_return", "call"} if starts else {"c_return"}
        self.signal_number = signal_number
        self.files = {getattr(module, "__file__", module) for module in modules}
        self.left = number
        self.struck = False

    def __enter__(self):
        gc.disable()
        sys.setprofile(self._profile)

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        gc.enable()
        self.struck = kind is KeyboardInterrupt
        return self.struck

    def _profile(self, frame, event, _):
        if event in self.events and frame.f_code.co_filename in self.files:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(self.signal_number)


class LineStrike(Strike):
    """Presses Ctrl-C at a module's n-th line that runs, wherever CPython looks for signals.

    It does not look between the step in which a message is taken and the `return` of the call,
    whose names are `skipped`.
    """

    def __init__(self, modules, number, *, skipped=()):
        super().__init__(modules, number)
        self.skipped = skipped

    def __enter__(self):
        gc.disable()
        sys.settrace(self._trace)

    def __exit__(self, kind, *_):
        sys.settrace(None)
        gc.enable()
        self.struck = kind is KeyboardInterrupt
        return self.struck

    def _trace(self, frame, event, _):
        code = frame.f_code
        if code.co_filename not in self.files or code.co_qualname in self.skipped:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self._trace


class StruckError(Exception):
    """What a signal's handler raises, or the lack of memory."""


class AtLine:
    """Raises in this thread, when so many lines of `files` were begun; not in `skipped` calls."""

    def __init__(self, files, number, skipped=()):
        self.files = files
        self.left = number
        self.skipped = skipped
        self.struck = False

    def __enter__(self):
        gc.disable()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
        gc.enable()

    def _trace(self, frame, event, _):
        code = frame.f_code
        if self.struck or code.co_filename not in self.files or code.co_name in self.skipped:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.struck = True
                raise StruckError
        return self._trace
