import json
import random

import pytest

from p2pmsg import PublisherConfig
from p2pmsg.cli import main
from p2pmsg.cli.capacity import RECORD_BYTES, footprint
from p2pmsg.publisher.batch import pack_alone, pack_slice
from p2pmsg.publisher.core import PublisherCore
from p2pmsg.wire import stream_prefix

TOPIC = "t" * 8
CAPACITY = ["capacity", "--rate", "50000", "--size", "128"]


def test_the_record_is_the_logs_own():
    log_format = pytest.importorskip("recovery.log.format")

    assert log_format.HEAD_BYTES == RECORD_BYTES


def frame_bytes(size, count):
    prefix = stream_prefix(TOPIC, 1)
    if count == 1:
        return len(pack_alone(prefix, 0, 0, bytes(size), None, None, 2**30)[0])
    return len(pack_slice(prefix, 0, 0, [bytes(size)] * count, None, None, bytearray())[0])


@pytest.mark.parametrize("size", [0, 128, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [1, 20, 500])
def test_a_message_takes_what_its_frame_takes(size, count):
    expected = (RECORD_BYTES + frame_bytes(size, count)) / count

    # Arrays have a header of 1, 3 or 5 bytes: the longest is reckoned with.
    assert footprint(1, size, per_frame=count).total_bytes == pytest.approx(expected, abs=4 / count)


def measured_per_frame(rate, size, count=20_000):
    """Publish so many messages that come at random; return how many share a frame."""
    rng, now_s, frames, value = random.Random(rate), 1.0, 0, bytes(size)
    ticked_ns = 1_000_000_000
    core = PublisherCore(
        name="p", session=1, recovery="memory://r", config=PublisherConfig(), now_ns=0
    )
    for number in range(100 + count):  # the first ones go out one by one
        frames = frames if number > 100 else 0
        now_s += rng.expovariate(rate)
        now_ns = int(now_s * 1e9)
        while ticked_ns < now_ns:  # as the publisher's thread looks at its batches
            ticked_ns += 1_000_000
            core.handle_timer(now_ns=ticked_ns)
        core.publish("t", value, None, None, None, now_ns=now_ns, wall_ns=now_ns)
        frames += len(core.outbox)
        core.outbox.clear()
    return count / frames


RATES = [
    (100, 128), (1000, 128), (10_000, 128), (20_000, 20), (50_000, 128), (100_000, 1000),
    (300_000, 128), (3_000_000, 126), (100_000, 100_000),
]  # fmt: skip


@pytest.mark.parametrize(("rate", "size"), RATES)
def test_as_many_share_a_frame_as_do_at_a_publisher(rate, size):
    measured = measured_per_frame(rate, size)
    assert footprint(rate, size).per_frame == pytest.approx(measured, rel=0.1)
    assert footprint(10 * rate, size, streams=10).per_frame == footprint(rate, size).per_frame


@pytest.mark.parametrize(
    ("rate", "size", "count"), [(2_000_000, 126, 1024.0), (100_000, 100_000, 1.0)]
)
def test_no_more_share_a_frame_than_fill_it(rate, size, count):
    assert footprint(rate, size).per_frame == pytest.approx(count, rel=0.1)


def test_the_window_and_the_disk_are_each_others_answer(capsys):
    assert main([*CAPACITY, "--disk", "500GB", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main([*CAPACITY, "--window", f"{there['window_s']:.6f}s", "--json"]) == 0
    back = json.loads(capsys.readouterr().out)

    assert there["disk_bytes"] == 500 * 10**9
    taken = footprint(50_000, 128).total_bytes
    assert there["message_bytes"] == round(taken, 3)
    assert there["bytes_s"] == pytest.approx(50_000 * taken)
    assert back["disk_bytes"] == pytest.approx(500 * 10**9, rel=1e-6)


def test_it_says_how_it_computes(capsys):
    assert main([*CAPACITY, "--disk", "500GB", "--overhead", "72"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "500 GB hold 13 h 53 min of 50,000 messages/s of 128 B",
        "  a message takes 200.0 bytes: 128 value + 72 overhead",
        "  10 MB a second, 864 GB a day",
        "  window = disk / (rate x bytes a message)",
    ]


def test_it_names_the_parts_of_a_message(capsys):
    assert main([*CAPACITY, "--window", "1d", "--per-frame", "100"]) == 0

    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("1 d of 50,000 messages/s of 128 B need 5")
    assert "128 value + 2 msgpack + 1.04" in second
    assert second.endswith("share of frame and record, 100 messages a frame")


def test_messages_without_a_byte_fit_for_ever(capsys):
    argv = ["capacity", "--rate", "1", "--size", "0", "--disk", "1", "--overhead", "0"]
    assert main(argv) == 0
    assert "hold for ever" in capsys.readouterr().out

    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["window_s"] is None
