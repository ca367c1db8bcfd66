"""The logger `p2pmsg`, as this package and those above it use it: what is logged never raises."""

import logging
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class OwnLog(logging.LoggerAdapter[logging.Logger]):
    """Logs what happens, whatever a filter or a handler of the application raises.

    A warning comes from the midst of the work, mostly in a thread or a round that everything
    depends on, and the exception would end that: then nothing would be repaired any more. So it is
    printed to stderr, with the record that is missing, where `logging.raiseExceptions` is set: as
    the handlers of the standard library do with their own exceptions.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.log`; it raises nothing but what is meant for the program."""
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            with suppress(Exception):
                _print(msg, args)


def _print(msg: object, args: tuple[object, ...]) -> None:
    if not logging.raiseExceptions or sys.stderr is None:
        return
    values = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args
    text = str(msg) % values if args else str(msg)
    sys.stderr.write(f"--- Logging error of the application ---\n{traceback.format_exc()}{text}\n")


own_log = OwnLog(logging.getLogger("p2pmsg"))
