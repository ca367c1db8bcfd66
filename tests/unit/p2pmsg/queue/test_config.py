"""Settings that nobody needs, and that must not end a background thread."""

import logging

import pytest

import p2pmsg

FOREVER_S = 1e9


@pytest.mark.parametrize("acknowledge", ["each", "batch"])
def test_a_queue_works_however_long_a_time_is(acknowledge, request, caplog):
    options = {} if acknowledge == "batch" else {"job_timeout": FOREVER_S}
    endpoint = f"inproc://{request.node.name}"
    with (
        caplog.at_level(logging.ERROR),
        p2pmsg.Pusher(
            endpoint, acknowledge=acknowledge, ack_timeout=FOREVER_S, **options
        ) as pusher,
        p2pmsg.Puller(endpoint, acknowledge=acknowledge) as puller,
    ):
        pusher.push("job")
        job = puller.receive(60)
        if acknowledge == "each":
            assert job.extend(FOREVER_S)
        assert job.ack()
        puller.commit()
        pusher.join(60)
    assert caplog.text == ""


def test_a_frame_limit_that_no_pusher_reads_is_refused():
    with pytest.raises(
        p2pmsg.ConfigError, match=r"^frame_bytes_max .*at most 4611686018427387904.*1180591620717"
    ):
        p2pmsg.Puller("tcp://127.0.0.1:9", frame_bytes_max=2**70)
