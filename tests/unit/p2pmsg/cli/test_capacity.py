import json

import pytest

from p2pmsg.cli import main
from p2pmsg.cli.capacity import RECORD_BYTES, message_bytes
from p2pmsg.publisher.batch import pack_alone, pack_slice
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
    assert message_bytes(size, count) == pytest.approx(expected, abs=4 / count)


def test_the_window_and_the_disk_are_each_others_answer(capsys):
    assert main([*CAPACITY, "--disk", "500GB", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main([*CAPACITY, "--window", f"{there['window_s']:.6f}s", "--json"]) == 0
    back = json.loads(capsys.readouterr().out)

    assert there["disk_bytes"] == 500 * 10**9
    assert there["bytes_s"] == pytest.approx(50_000 * there["message_bytes"])
    assert back["disk_bytes"] == pytest.approx(500 * 10**9, rel=1e-6)
