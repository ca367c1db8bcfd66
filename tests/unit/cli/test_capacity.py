import json

import pytest

from p2pmsg.batch import pack_alone, pack_slice
from p2pmsg.cli import main
from p2pmsg.cli.capacity import _RECORD_BYTES, footprint
from p2pmsg.wire import stream_prefix

TOPIC = "t" * 8
CAPACITY = ["capacity", "--rate", "50000", "--size", "128"]


def test_the_record_is_the_logs_own():
    log_format = pytest.importorskip("recovery.log.format")

    assert log_format.HEAD_BYTES == _RECORD_BYTES


def frame_bytes(size, count):
    prefix = stream_prefix(TOPIC, 1)
    if count == 1:
        return len(pack_alone(prefix, 0, 0, bytes(size), None, None, 2**30)[0])
    return len(pack_slice(prefix, 0, 0, [bytes(size)] * count, None, None, bytearray())[0])


@pytest.mark.parametrize("size", [0, 128, 255, 256, 65_535, 65_536])
@pytest.mark.parametrize("count", [1, 20, 500])
def test_a_message_takes_what_its_frame_takes(size, count):
    expected = (_RECORD_BYTES + frame_bytes(size, count)) / count

    # Arrays have a header of 1, 3 or 5 bytes: the longest is reckoned with.
    assert footprint(1, size, per_frame=count).total_bytes == pytest.approx(expected, abs=4 / count)


RATES = {
    "slow: each for itself": (1000, 128, 1, 1.0),
    "20 µs apart": (50_000, 128, 1, 1.0),
    "closer: those of 1 ms share a frame": (100_000, 128, 1, 100.0),
    "spread over many streams": (100_000, 128, 10, 1.0),
    "a frame is full before": (2_000_000, 126, 1, 1024.0),
    "larger than a frame": (100_000, 100_000, 1, 1.0),
}


@pytest.mark.parametrize(("rate", "size", "streams", "count"), RATES.values(), ids=RATES)
def test_how_many_share_a_frame(rate, size, streams, count):
    assert footprint(rate, size, streams=streams).per_frame == count


def test_the_window_and_the_disk_are_each_others_answer(capsys):
    assert main([*CAPACITY, "--disk", "500GB", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main([*CAPACITY, "--window", f"{there['window_s']:.6f}s", "--json"]) == 0
    back = json.loads(capsys.readouterr().out)

    assert there["disk_bytes"] == 500 * 10**9
    assert there["bytes_s"] == pytest.approx(50_000 * there["message_bytes"])
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
