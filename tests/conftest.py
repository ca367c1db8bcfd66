"""For all tests: Ctrl-C means what it says, however they were started; who runs beside whom."""

import signal
from pathlib import Path

import pytest

# A shell that starts something in the background has it ignore Ctrl-C, and its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Keep what uses ports and Spark in a worker each (`-n 3 --dist loadgroup`)."""
    for item in items:
        room = Path(item.path).relative_to(Path(__file__).parent).parts[0]
        if room in ("integration", "spark"):
            item.add_marker(pytest.mark.xdist_group(room))
