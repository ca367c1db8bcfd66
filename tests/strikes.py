"""Interrupts at each place where CPython looks for signals, and exceptions at each line.

Nothing is collected meanwhile: that would strike what other tests left to be finalized.
"""

import gc
import signal
import sys
from pathlib import Path


def files_of(*modules):
    """Return the files of modules; of a package, those of all modules in it."""
    paths = [Path(module.__file__) for module in modules]
    whole = [path.parent.rglob("*.py") if path.name == "__init__.py" else [path] for path in paths]
    return {str(path) for found in whole for path in found}


class Strike:
    """Presses Ctrl-C, or raises another signal, after a module's n-th call of a C function.

    There, and at the start of Python's own functions, is where CPython looks for signals.
    """

    def __init__(self, modules, number, signal_number=signal.SIGINT):
        self.signal_number = signal_number
        self.files = files_of(*modules)
        self.left = number

    def __enter__(self):
        gc.disable()
        sys.setprofile(self._profile)

    def __exit__(self, kind, *_):
        sys.setprofile(None)
        gc.enable()
        return kind is KeyboardInterrupt

    def _profile(self, frame, event, _):
        if event == "c_return" and frame.f_code.co_filename in self.files:
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(self.signal_number)


class StruckError(Exception):
    """What a signal's handler raises, or the lack of memory."""


class AtLine:
    """Raises in this thread when so many lines of `files` were begun, and ends the block with it.

    Calls whose names, or qualified names, are `skipped` are not struck. `struck` says whether there
    were so many lines.
    """

    def __init__(self, files, number, skipped=(), error=StruckError):
        self.files, self.left, self.skipped, self.error = files, number, skipped, error
        self.struck = False

    def __enter__(self):
        gc.disable()
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind, *_):
        sys.settrace(None)
        gc.enable()
        return self.struck and kind is self.error

    def _trace(self, frame, event, _):
        code = frame.f_code
        if self.struck or code.co_filename not in self.files:
            return None
        if code.co_name in self.skipped or code.co_qualname in self.skipped:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.struck = True
                raise self.error
        return self._trace
