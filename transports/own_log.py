"""The logger `p2pmsg`, as this package and those above it use it: what is logged never raises.

`logging` is imported when something is first logged: of an idle publisher and subscriber it, and
what it imports, would be 0.5 MB.
"""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from logging import Logger

# As `logging` has them.
_DEBUG: Final = 10
_INFO: Final = 20
_WARNING: Final = 30
_ERROR: Final = 40
_CRITICAL: Final = 50


class OwnLog:
    """Logs what happens, whatever a filter or a handler of the application raises.

    A warning comes from the midst of the work, mostly in a thread or a round that everything
    depends on, and the exception would end that: then nothing would be repaired any more. So it is
    printed to stderr, with the record that is missing, where `logging.raiseExceptions` is set: as
    the handlers of the standard library do with their own exceptions.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Logger | None = None

    def debug(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.debug`."""
        self._log(_DEBUG, text, args, kwargs)

    def info(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.info`."""
        self._log(_INFO, text, args, kwargs)

    def warning(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.warning`."""
        self._log(_WARNING, text, args, kwargs)

    def error(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.error`."""
        self._log(_ERROR, text, args, kwargs)

    def exception(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.exception`, within an `except`."""
        self._log(_ERROR, text, args, {"exc_info": True, **kwargs})

    def critical(self, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.critical`."""
        self._log(_CRITICAL, text, args, kwargs)

    def log(self, level: int, text: object, *args: object, **kwargs: Any) -> None:
        """Log as `logging.Logger.log`."""
        self._log(level, text, args, kwargs)

    def _log(
        self, level: int, text: object, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        """Log; it raises nothing but what is meant for the program."""
        try:
            logger = self._logger
            if logger is None:
                try:
                    import logging
                except OSError:  # no descriptor is left to import it: as `logging.lastResort` does
                    sys.stderr.write(f"{_text(text, args)}\n")
                    return
                logger = self._logger = logging.getLogger(self._name)
            # The caller's place is two frames above: this one and the method's are ours.
            stacklevel = kwargs.pop("stacklevel", 1) + 2
            logger.log(level, text, *args, stacklevel=stacklevel, **kwargs)
        except Exception:
            with suppress(Exception):
                _print(text, args)


def _print(msg: object, args: tuple[object, ...]) -> None:
    import logging
    from traceback import format_exc

    if not logging.raiseExceptions or sys.stderr is None:
        return
    text = _text(msg, args)
    sys.stderr.write(f"--- Logging error of the application ---\n{format_exc()}{text}\n")


def _text(msg: object, args: tuple[object, ...]) -> str:
    values = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else args
    return str(msg) % values if args else str(msg)


own_log: Final = OwnLog("p2pmsg")
