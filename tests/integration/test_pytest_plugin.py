"""The pytest plugin in real runs of pytest: what users' tests see of it."""

import re
from importlib.metadata import entry_points

import pytest

pytest_plugins = "pytester"

MODULE = "p2pmsg.pytest_plugin"
IS_INSTALLED = any(each.value == MODULE for each in entry_points(group="pytest11"))
PLUGIN = [] if IS_INSTALLED else ["-p", MODULE]

OTHERS = ("xdist", "xdist.looponfail", "hypothesispytest", "cacheprovider", "anyio")
WITHOUT = [word for name in OTHERS for word in ("-p", f"no:{name}")]
"""Plugins that would take half a second of each run, for nothing; anyio's imports asyncio."""


@pytest.fixture
def run(pytester):
    """Run a file of tests with the plugin in a process of its own."""

    def start(source, *arguments):
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(*PLUGIN, *WITHOUT, *arguments)

    return start


def test_what_a_users_tests_do(run):
    ended = run(
        """
        import pytest, p2pmsg

        def test_clean(p2pmsg_network):
            with p2pmsg_network.publisher() as publisher:
                subscriber = p2pmsg_network.subscriber(publisher, topics=["prices"])
                publisher.wait_for_subscribers(1)
                before = p2pmsg_network.now
                publisher.publish("prices", {"bid": 1}, key="BTC")
                with pytest.raises(TimeoutError, match="advance"):
                    subscriber.receive()
                assert p2pmsg_network.now == before
                p2pmsg_network.advance(0.5)
                message = subscriber.receive()
                assert (message.value, message.key) == ({"bid": 1}, "BTC")
                assert p2pmsg_network.now == pytest.approx(before + 0.5)

        @pytest.mark.p2pmsg_network(lossy=0.3, reordering=0.3)
        def test_lossy(p2pmsg_network):
            publisher = p2pmsg_network.publisher()
            subscriber = p2pmsg_network.subscriber(on_gap="raise")
            publisher.wait_for_subscribers(1)
            for number in range(200):
                publisher.publish("t", number)
                p2pmsg_network.advance(0.01)
            p2pmsg_network.drain()
            assert [message.value for message in subscriber] == [*range(200)]
            assert sum(subscriber.stats().repaired.values()) > 0

        @pytest.mark.p2pmsg_network(seed=5)
        class TestMarkers:
            def test_of_the_class(self, p2pmsg_network):
                assert p2pmsg_network.seed == 5

            @pytest.mark.p2pmsg_network(seed=6)
            def test_nearest_goes_first(self, p2pmsg_network):
                assert p2pmsg_network.seed == 6

            @pytest.mark.parametrize("p2pmsg_network", [{"seed": 7}], indirect=True)
            def test_parameter_goes_before_it(self, p2pmsg_network):
                assert p2pmsg_network.seed == 7
        """,
        "--strict-markers", "-W", "error",
    )  # fmt: skip

    ended.assert_outcomes(passed=5)


@pytest.mark.long
def test_what_tests_of_a_service_in_asyncio_do(run):
    ended = run(
        """
        import asyncio, pytest

        async def total_of(subscriber, totals):  # the service
            async for message in subscriber:
                totals.append(sum(totals[-1:]) + message.value)

        @pytest.mark.p2pmsg_network(lossy=0.2, seed=3)
        @pytest.mark.parametrize("way", ["publisher", "relay"])
        def test_service(p2pmsg_network, way):
            async def main():
                publisher, totals = p2pmsg_network.aio_publisher(), []
                source = p2pmsg_network.relay(publisher) if way == "relay" else publisher
                subscriber = p2pmsg_network.aio_subscriber(source, start="earliest")
                service = asyncio.create_task(total_of(subscriber, totals))
                await publisher.wait_for_subscribers(1)
                for number in range(100):
                    publisher.publish("t", number)
                    await p2pmsg_network.sleep(0.01)
                await p2pmsg_network.aio_drain()
                await p2pmsg_network.sleep(1.0)
                await subscriber.close()
                await service
                print("NOW", p2pmsg_network.now)
                return totals

            assert asyncio.run(main())[-1] == 4950

        def test_a_durable_consumer(p2pmsg_network):
            prices = p2pmsg_network.publisher()
            with p2pmsg_network.subscriber(prices, cursor="orders") as subscriber:
                prices.wait_for_subscribers(1)
                prices.publish_many("t", [1, 2, 3])
                subscriber.commit(subscriber.receive(timeout=5.0))
                subscriber.crash()
                subscriber.restart()
                assert subscriber.receive(timeout=5.0).value == 2

        def test_that_is_left_in_the_midst(p2pmsg_network):
            async def main():
                subscriber = p2pmsg_network.aio_subscriber(p2pmsg_network.aio_publisher())
                asyncio.create_task(subscriber.receive())
                await p2pmsg_network.sleep(0.1)

            asyncio.run(main())
        """,
        "-W", "error", "-s",
    )  # fmt: skip

    ended.assert_outcomes(passed=4)


FAILING = """
    import pytest

    @pytest.mark.p2pmsg_network(lossy=0.1)
    def test_that_fails(p2pmsg_network):
        publisher = p2pmsg_network.publisher()
        subscriber = p2pmsg_network.subscriber()
        publisher.wait_for_subscribers(1)
        print("TRACE", p2pmsg_network.now)
        assert False

    def test_without_the_fixture():
        assert False
"""


def test_a_failure_reports_its_seed_and_the_seed_repeats_the_run(run):
    first = run(FAILING)

    first.assert_outcomes(failed=2)
    text = first.stdout.str()
    (seed,) = re.findall(r"seed (\d+); to repeat it: pytest --p2pmsg-seed=\1 '.*test_that_f", text)
    again = run(FAILING, f"--p2pmsg-seed={seed}").stdout.str()
    trace = re.compile(r"^TRACE [\d.]+$", re.MULTILINE)
    assert trace.findall(again) == trace.findall(text) != []
    assert f"seed {seed};" in again


@pytest.mark.long
def test_what_is_wrong_is_named(run):
    ended = run(
        """
        import pytest

        @pytest.mark.p2pmsg_network(lossy=5)
        def test_value(p2pmsg_network): ...

        @pytest.mark.p2pmsg_network(0.05)
        def test_position(p2pmsg_network): ...

        @pytest.mark.p2pmsg_network(los=0.05)
        def test_name(p2pmsg_network): ...
        """
    )

    ended.assert_outcomes(errors=3)
    ended.stdout.fnmatch_lines_random(
        [
            "*lossy must be at most 1, not 5*",
            "*takes arguments by name: lossy=0.05*",
            "*unexpected keyword argument 'los'*",
        ]
    )


@pytest.mark.long
def test_a_run_that_does_not_use_it_imports_nothing_of_it(run):
    ended = run(
        """
        import sys

        def test_modules():
            ours = {name for name in sys.modules if name.startswith(("p2pmsg", "recovery"))}
            assert ours <= {"p2pmsg", "p2pmsg.ctrl_c", "p2pmsg.pytest_plugin"}
            assert not {"zmq", "msgspec", "asyncio", "transports"} & set(sys.modules)
        """
    )

    ended.assert_outcomes(passed=1)


@pytest.mark.long
def test_the_marker_is_explained(run):
    assert "lossy=0.0" in run("", "--markers").stdout.str()
