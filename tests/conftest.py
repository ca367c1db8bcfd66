"""For all tests: Ctrl-C means what it says, and Spark keeps to one worker."""

import signal

import pytest

# A shell that starts something in the background has it ignore Ctrl-C, and its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist looks at the groups
def pytest_collection_modifyitems(items):
    """Have one worker for the shared Spark and one for programs that start their own.

    With `--dist loadgroup`; more of them side by side take longer than in turn.
    """
    for item in items:
        if item.get_closest_marker("spark"):
            group = "spark" if "spark" in item.fixturenames else "programs with spark"
            item.add_marker(pytest.mark.xdist_group(group))
