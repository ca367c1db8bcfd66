"""Fixtures that close whatever a test opened, in the end and in order."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import p2pmsg
from p2pmsg.testing.proxy import TcpProxy
from tests.integration import inside
from tests.integration.commands import command
from tests.integration.peers import LOOPBACK, eventually, start_child
from tests.integration.secure import Peers


@pytest.fixture
def opened():
    """Keep what a test opens; all of it is closed when the test ends, last one first."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def bridge(opened):
    return lambda *arguments, **options: opened.enter_context(p2pmsg.Bridge(*arguments, **options))


@pytest.fixture
def endpoint(tmp_path):
    return f"ipc://{tmp_path}/feed"


@pytest.fixture
def peers(tmp_path):
    """Make peers with keys."""
    return Peers(tmp_path)


@pytest.fixture
def start(tmp_path, opened):
    """Start a command of `p2pmsg`; it is killed in the end."""
    return lambda *arguments, **options: opened.enter_context(
        command(tmp_path, *arguments, **options)
    )


def maker(kind, count, **closing):
    """Return a fixture that makes peers of `count` places, the last one LOOPBACK if not given."""

    @pytest.fixture
    def make(opened):
        def make(*places, **options):
            made = kind(*places, *[LOOPBACK] * (count - len(places)), **options)
            opened.callback(made.close, **closing)
            return made

        return make

    return make


make_publisher = maker(p2pmsg.Publisher, 1, timeout=0.0)
make_relay = maker(p2pmsg.Relay, 2, timeout=0.0)
make_pusher = maker(p2pmsg.Pusher, 1, timeout=0.0)
make_puller = maker(p2pmsg.Puller, 1)


@pytest.fixture
def make_subscriber(opened):
    """Make a subscriber; with `joins`, wait until these publishers have one that is new."""

    def ids(publisher):
        # Not their number: one that was closed just now may still be counted.
        return set(inside.joined_ids(publisher))

    def make(endpoints, *, joins=None, **options):
        publishers = [joins] if isinstance(joins, p2pmsg.Publisher) else (joins or [])
        before = [ids(publisher) for publisher in publishers]
        made = opened.enter_context(p2pmsg.Subscriber(endpoints, **options))
        for publisher, known in zip(publishers, before, strict=True):
            eventually(lambda publisher=publisher, known=known: ids(publisher) - known)
        return made

    return make


@pytest.fixture
def memory_path(tmp_path):
    """A folder in memory, if possible: fsync takes no time in tests that are not about the disk."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture
def cursor_path(tmp_path):
    """Where `resume` has its cursor."""
    return tmp_path / "bars.cursor"


@pytest.fixture
def resume(make_subscriber, cursor_path):
    """Make a subscriber on a cursor that the former one has let go of."""
    return lambda publisher, **options: make_subscriber(
        publisher.endpoint, cursor=cursor_path, **options
    )


@pytest.fixture
def make_proxy(opened):
    return lambda publisher, **options: opened.enter_context(
        TcpProxy(publisher.endpoint, **options)
    )


@pytest.fixture
def connect(make_publisher, make_subscriber):
    """Make a publisher with the options `publisher`, and a subscriber that has joined it."""

    def make(endpoint=None, *, publisher=None, **options):
        made = make_publisher(endpoint or LOOPBACK, **publisher or {})
        return made, make_subscriber(endpoint or made.endpoint, joins=made, **options)

    return make


@pytest.fixture
def connect_by_proxy(make_publisher, make_proxy, make_subscriber):
    """Make a publisher, a proxy to it and a subscriber that has joined it through the proxy."""

    def make(*, publisher=None, proxy=None, **options):
        made = make_publisher(**publisher or {})
        between = make_proxy(made, **proxy or {})
        return made, between, make_subscriber(between.endpoint, joins=made, **options)

    return make


@pytest.fixture
def make_child(opened):
    """Start a child process; it is killed in the end, if it still runs."""

    def make(role, *arguments, module="children"):
        child = start_child(role, *arguments, module=module)
        opened.callback(child.finish)
        return child

    return make


@pytest.fixture
def carbon():
    from tests.integration.statsd_tools import Carbon

    made = Carbon()
    yield made
    made.close()


@pytest.fixture(scope="session")
def compile_with_libzmq(tmp_path_factory):
    """Compile a C program that uses libzmq; returns where it is. Skip without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is there")
    folder = tmp_path_factory.mktemp("compiled")
    probe = subprocess.run(
        [compiler, "-x", "c", "-", "-o", folder / "probe", "-lzmq"], capture_output=True,
        input=b"#include <zmq.h>\nint main(void) { return zmq_errno() > 0; }\n",
    )  # fmt: skip
    if probe.returncode:
        pytest.skip("libzmq's headers are not there (Debian: libzmq3-dev)")

    def make(source):
        program = folder / source.stem
        flags = ["-Wall", "-Wextra", "-Werror", "-fsanitize=undefined,address"]
        subprocess.run([compiler, *flags, "-o", program, source, "-lzmq"], check=True)
        return program

    return make


@pytest.fixture
def wire():
    """Two network namespaces with a wire between them."""
    from tests.bench.groups import Namespaces

    with Namespaces() as made:
        if not made.sender_pid:
            pytest.skip("no namespaces here")
        yield made
