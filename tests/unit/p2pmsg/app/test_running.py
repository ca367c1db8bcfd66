"""What an app says of an event loop that does not run."""

import asyncio
import logging
import threading

import pytest

from p2pmsg.app.running import Run


def make_run(stop_timeout):
    return Run(None, [], [], [], [], threads=1, stop_timeout=stop_timeout)


@pytest.mark.parametrize("stop_timeout", [1e10, 1e300])
def test_a_long_stop_timeout_does_not_end_the_thread_that_reports_a_blocked_loop(stop_timeout):
    async def main():
        run = make_run(stop_timeout)
        run._watch_loop()
        run._watch.join(0.1)
        is_alive = run._watch.is_alive()
        run._watch.cancel()
        return is_alive

    assert asyncio.run(main())


def test_where_no_handler_runs_a_blocked_loop_is_reported_without_a_name(caplog):
    async def main():
        thread = threading.Thread(target=make_run(1.0)._report_blocked)
        thread.start()
        thread.join()  # so the loop is blocked

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    assert caplog.messages == ["the event loop is blocked: the app cannot stop"]
