"""Settings that nobody needs, and that must not end a background thread."""

import logging
from functools import partial

import pytest

import p2pmsg
from p2pmsg.queue import PullerConfig, PusherConfig, QueueConfig
from p2pmsg.queue.pipeline.config import PipelineConfig

TIMES = ("ack_timeout", "dedup_window", "retry_max")
LONG = (1e9,)


def queue_of(**settings):
    return PusherConfig(queue=QueueConfig(**settings))


CASES = {
    **{f"queue.{name}": (lambda value, name=name: (queue_of(**{name: value}), None))
       for name in TIMES},
    "pusher_timeout": lambda value: (None, PullerConfig(pusher_timeout=value)),
    "job_timeout": lambda value: (PusherConfig(job_timeout=value), None),
}  # fmt: skip


@pytest.mark.parametrize("value", LONG)
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_queue_works_however_long_a_time_is(make, value, request, caplog):
    pushing, pulling = make(value)
    endpoint = f"inproc://{request.node.name}"
    with (
        caplog.at_level(logging.ERROR),
        p2pmsg.Pusher(endpoint, config=pushing) as pusher,
        p2pmsg.Puller(endpoint, config=pulling) as puller,
    ):
        pusher.push("job")
        puller.receive(60).ack()
    assert caplog.text == ""


@pytest.mark.parametrize("value", LONG)
def test_a_job_may_be_extended_for_as_long_as_one_likes(value, request):
    endpoint = f"inproc://{request.node.name}"
    with p2pmsg.Pusher(endpoint) as pusher, p2pmsg.Puller(endpoint) as puller:
        pusher.push("job")
        job = puller.receive(60)
        assert job.extend(value)
        assert job.ack()
        pusher.drain(60)


@pytest.mark.parametrize("value", LONG)
@pytest.mark.parametrize("field", ["ack_timeout"])
def test_so_does_a_pipeline(field, value, request):
    make = partial(p2pmsg.Pusher, mode="pipeline", config=PipelineConfig(**{field: value}))
    endpoint = f"inproc://{request.node.name}"
    with make(endpoint) as pusher, p2pmsg.Puller(endpoint, mode="pipeline") as puller:
        pusher.push("job")
        assert puller.receive(60).value == "job"
        with pytest.raises(TimeoutError):  # to ask for the next one says that this one is done
            puller.receive(0)


def test_a_frame_limit_that_no_pusher_reads_is_refused():
    PullerConfig(frame_bytes_max=2**62)
    with pytest.raises(
        p2pmsg.ConfigError, match=r"^frame_bytes_max .*at most 4611686018427387904.*1180591620717"
    ):
        PullerConfig(frame_bytes_max=2**70)
