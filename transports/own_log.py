"""The logger `p2pmsg`, as this package and those above it use it: what is logged never raises.

`logging` is imported when something is first logged: of an idle publisher and subscriber it, and
what it imports, would be 0.5 MB.
"""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from logging import Logger

# As `logging` has them.
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

    def info(self, text: str, *args: object) -> None:
        """Log as `logging.Logger.info`."""
        self._log(_INFO, text, args, None)

    def warning(self, text: str, *args: object, exc_info: Any = None) -> None:
        """Log as `logging.Logger.warning`."""
        self._log(_WARNING, text, args, exc_info)

    def error(self, text: str, *args: object, exc_info: Any = None) -> None:
        """Log as `logging.Logger.error`."""
        self._log(_ERROR, text, args, exc_info)

    def exception(self, text: str, *args: object) -> None:
        """Log as `logging.Logger.exception`, within an `except`."""
        self._log(_ERROR, text, args, True)

    def critical(self, text: str, *args: object, exc_info: Any = None) -> None:
        """Log as `logging.Logger.critical`."""
        self._log(_CRITICAL, text, args, exc_info)

    def _log(self, level: int, text: str, args: tuple[object, ...], exc_info: Any) -> None:
        """Log; it raises nothing but what is meant for the program."""
        try:
            if self._logger is None:
                try:
                    import logging
                except OSError:  # no descriptor is left to import it: as `logging.lastResort` does
                    sys.stderr.write(f"{text % args if args else text}\n")
                    return
                self._logger = logging.getLogger(self._name)
            # The caller's place is two frames above: this one and the method's are ours.
            self._logger.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        except Exception:
            with suppress(Exception):
                _print(text, args)


def _print(text: str, args: tuple[object, ...]) -> None:
    import logging
    from traceback import format_exc

    if logging.raiseExceptions and sys.stderr is not None:
        said = text % args if args else text
        sys.stderr.write(f"--- Logging error of the application ---\n{format_exc()}{said}\n")


own_log: Final = OwnLog("p2pmsg")
