"""The pytest plugin: the fixture `p2pmsg_network`.

It is loaded by every pytest run where p2pmsg is installed, so it imports nothing of p2pmsg before a
test uses the fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from p2pmsg.testing.virtual import VirtualNetwork

_SEED = pytest.StashKey[int]()
_MARKER = (
    "p2pmsg_network(seed=None, lossy=0.0, reordering=0.0, duplication=0.0, delay=(0.0001, 0.001), "
    "repair_timeout=10.0, log=False): what the fixture p2pmsg_network is like; times in seconds"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--p2pmsg-seed`."""
    parser.getgroup("p2pmsg").addoption(
        "--p2pmsg-seed",
        metavar="N",
        type=int,
        help="seed of the fixture p2pmsg_network, as a failure reports it (default: drawn for "
        "each test)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def p2pmsg_network(request: pytest.FixtureRequest) -> Iterator[VirtualNetwork]:
    """Make a network in memory: publishers and subscribers in one thread, a clock moved by hand.

    ::

        @pytest.mark.p2pmsg_network(lossy=0.05)
        def test_prices(p2pmsg_network):
            publisher = p2pmsg_network.publisher()
            subscriber = p2pmsg_network.subscriber(publisher, topics=["prices"])
            publisher.wait_for_subscribers(1)
            publisher.publish("prices", 61_685.99)
            p2pmsg_network.advance(0.5)
            assert subscriber.receive().value == 61_685.99

    It is a `p2pmsg.testing.VirtualNetwork`. The marker `p2pmsg_network`, of the test, its class or
    its module, gives its arguments; so does `parametrize("p2pmsg_network", [{"lossy": 0.05}],
    indirect=True)`, which goes before the marker. A failing test reports its seed; with the
    option `--p2pmsg-seed` it runs with that.
    """
    from p2pmsg.testing.virtual import VirtualNetwork

    options: dict[str, Any] = {"seed": request.config.getoption("--p2pmsg-seed")}
    for marker in reversed([*request.node.iter_markers("p2pmsg_network")]):
        if marker.args:
            raise pytest.UsageError("the marker p2pmsg_network takes arguments by name: lossy=0.05")
        options.update(marker.kwargs)
    options.update(getattr(request, "param", {}))
    network = VirtualNetwork(**options)
    request.node.stash[_SEED] = network.seed
    yield network
    for one in (*network.publishers, *network.relays, *network.subscribers):
        one.crash()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add the seed to the report of a test that failed."""
    outcome = yield
    seed = item.stash.get(_SEED, None)
    report = outcome.get_result()
    if seed is not None and report.failed:
        again = f"pytest --p2pmsg-seed={seed} {item.nodeid!r}"
        report.sections.append(("p2pmsg_network", f"seed {seed}; to repeat it: {again}"))
