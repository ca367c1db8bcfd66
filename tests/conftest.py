"""For all tests: Ctrl-C means what it says, Spark keeps to one worker, and long tests are left out.

A test marked `long` is left out, but with `--long`, `-m long`, or where the command line names the
test itself. A test marked `rounds(short, long)` runs always, more often with `--long`. With
`--long` nothing else runs: all the rest is in the short run.
"""

import contextlib
import faulthandler
import importlib
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import areas
from tests.spark_home import make_home

ROOT = Path(__file__).parent
CACHE = ROOT.parent / ".pytest_cache"
IN_TURN = (
    "tests/spark/",
    "tests/integration/test_demo.py::",
    "tests/unit/recovery/log/test_log_reads.py::",
)
"""What one worker runs one by one: the first two as they are the most, which the scheduler begins
with; the last one as its log takes seconds to make, and is made once."""
LONG_TIMEOUT_S = 1800
"""Of a test that is long, or runs with `--long`, where it does not say otherwise."""

# A shell that starts something in the background has it ignore Ctrl-C, and its children too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The tests start some hundreds of interpreters: each would compile all of the package again where
# nothing may be written next to the source.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(CACHE / "bytecode"))
if "SPARK_HOME" not in os.environ and (home := make_home(CACHE)) is not None:
    os.environ["SPARK_HOME"] = str(home)

STUCK_S, PUT_OFF_S = 240.0, 30.0
WATCH = pytest.StashKey()


class Watch:
    """When it was put off last that stacks are shown, and where to: what is no test's output."""

    def __init__(self):
        self.put_off_at = 0.0
        self.stderr = os.dup(2)


settings.register_profile(  # a slow machine is no finding; the same examples at each run
    "short", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("long", settings.get_profile("short"), derandomize=False)
settings.load_profile("short")


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="rounds, seeds and soaks, and only these")
    parser.addoption("--only", metavar="AREA,…", help="tests of these areas (tests/areas.py)")


def pytest_runtest_setup(item):
    """Have the stacks of all threads shown where no test begins any more: one is stuck in C code.

    `pytest-timeout` cannot end that. It is put off by a thread of faulthandler's that ends and a
    new one, for which a busy machine takes 10 ms: so it is done now and then, and not for each test
    as `faulthandler_timeout` would have it. Nothing is shown where a test may take longer: walking
    the stacks of threads that run may crash the process.
    """
    marker = item.get_closest_marker("timeout")
    usual = float(item.config.getini("timeout") or 0)
    now, watch = time.monotonic(), item.config.stash[WATCH]
    if marker is not None and marker.args and marker.args[0] > usual:
        faulthandler.cancel_dump_traceback_later()
        watch.put_off_at = 0.0
    elif now > watch.put_off_at + PUT_OFF_S:
        faulthandler.dump_traceback_later(2 * usual or STUCK_S, file=watch.stderr)
        watch.put_off_at = now


def pytest_runtest_teardown():
    """Let Ctrl-C mean what it says again: an example that ran in this process may have taken it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.stash[WATCH] = Watch()
    if config.getoption("--long"):
        settings.load_profile("long")
    only = config.getoption("--only")
    try:
        config.only_areas = areas.parse(only) if only else None
    except ValueError as error:
        raise pytest.UsageError(f"--only: {error}") from None


def pytest_unconfigure(config):
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[WATCH].stderr)


def pytest_ignore_collect(collection_path, config):
    """Do not even import what `--only` leaves out."""
    if config.only_areas is None or not collection_path.name.startswith("test_"):
        return None
    path = collection_path.relative_to(ROOT).as_posix()
    return None if areas.belongs(path, config.only_areas) else True


def pytest_collection(session):
    """Have each worker compile a part of the tests, and read what the others have compiled.

    Where nothing is compiled yet, as on a fresh clone, each would rewrite the assertions of all of
    them by itself, for 10 s.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    config = session.config
    is_whole = [Path(arg).resolve() for arg in config.args] == [ROOT]
    if count < 2 or not is_whole or config.only_areas is not None:
        return
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for path in sorted(ROOT.rglob("test_*.py"))[number::count]:
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        with contextlib.suppress(Exception, pytest.skip.Exception):  # it is said where it is due
            importlib.import_module(name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Have one worker for the shared Spark and one for the demos, some of which start their own.

    More of them side by side take longer than in turn. Not by pytest-xdist's groups: it writes them
    to an attribute that pytest 9.2 does not read any more, and each worker would start a Spark.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            alone = [place for place in IN_TURN if nodeid.startswith(place)]
            return alone[0] if alone else nodeid

        def mark_test_complete(self, node, item_index, duration=0):
            """Forget what is done, which is otherwise looked through after each test."""
            super().mark_test_complete(node, item_index, duration)
            scope = self._split_scope(self.registered_collections[node][item_index])
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    return Scheduling(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leave out what is not of this run."""
    chosen, others = [], []
    for item in items:
        (chosen if is_of_this_run(config, item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen
    for item in items:
        is_long = config.getoption("--long") or item.get_closest_marker("long")
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


def is_of_this_run(config, item):
    is_long = item.get_closest_marker("long") is not None
    if config.getoption("--long"):
        is_random = is_hypothesis_test(getattr(item, "obj", None))  # by other examples each time
        return is_long or is_random or item.get_closest_marker("rounds") is not None
    is_named = any(item.nodeid.startswith(arg) for arg in config.args if "::" in arg)
    return not is_long or is_named or "long" in config.getoption("-m")


@pytest.fixture
def rounds(request):
    """How often to do it: by the marker `rounds(short, long)`, times P2PMSG_SEEDS (default 1)."""
    short, long = request.node.get_closest_marker("rounds").args
    count = long if request.config.getoption("--long") else short
    return max(1, int(count * float(os.environ.get("P2PMSG_SEEDS", "1"))))
