"""An application whose log raises: a filter or a handler of its logger has a mistake."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class RaisingHandler(logging.Handler):
    """Raises where handlers of the standard library print what went wrong."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("a handler of the application's")


def _raises(record: logging.LogRecord) -> bool:
    raise RuntimeError("a filter of the application's")


@contextmanager
def raising_log(how: str) -> Iterator[None]:
    """Have the logger `p2pmsg` raise whatever is logged, by a `filter` or a `handler`."""
    log = logging.getLogger("p2pmsg")
    handler = RaisingHandler()
    if how == "filter":
        log.addFilter(_raises)
    else:
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeFilter(_raises)
        log.removeHandler(handler)
