"""What a Mold publisher's `publish` returned for is in its log: kills, and a disk that fails."""

import itertools
import os
import signal
import struct

import pytest

import p2pmsg
from p2pmsg import LogConfig
from p2pmsg.mold.log import MoldLog
from tests.integration.peers import start_child
from tests.integration.test_udp_multicast import free_port

pytest.importorskip("recovery.log")

_RETURNED = struct.Struct("!Q")
ROUNDS = 2


@pytest.fixture
def place():
    return f"mold://239.255.11.1:{free_port()}?interface=127.0.0.1&request=127.0.0.1:0"


def publish_until_killed(place, directory, fsync):
    """Publish at full rate; say by fd 1 what was returned, as eight bytes each."""
    with p2pmsg.MoldPublisher(place, session="S1", log=LogConfig(directory, fsync=fsync)) as feed:
        for number in itertools.count():
            if number % 100:
                last = feed.publish(b"m%d" % number)
            else:
                last = feed.publish_many([b"x" * 700] * 5)[1]
            os.write(1, _RETURNED.pack(last))


def messages_of(directory):
    from recovery.log import LogReader

    reader = LogReader(directory)
    try:
        kept = [(record.start, record.stop) for record in reader.records()]
    finally:
        reader.close()
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(kept))
    return kept[-1][1] if kept else 1


@pytest.mark.parametrize("fsync", ["interval", "always", "never"])
def test_a_killed_publisher_loses_nothing_that_publish_returned_for(opened, place, tmp_path, fsync):
    following, count = 1, 0
    for _ in range(ROUNDS):
        child = start_child(
            "publish_until_killed", place, tmp_path, fsync, module="test_udp_mold_accepted"
        )
        opened.callback(child.finish)
        said = b""
        while len(said) < 8 * 100:
            said += os.read(child.process.stdout.fileno(), 65_536)
        child.signal(signal.SIGKILL)
        while data := os.read(child.process.stdout.fileno(), 65_536):
            said += data
        child.wait()
        returned = [last for (last,) in _RETURNED.iter_unpack(said[: len(said) // 8 * 8])]
        count += len(returned)
        assert returned[0] >= following, "a sequence was given twice"
        following = messages_of(tmp_path)
        assert following > returned[-1], f"{returned[-1] - following + 1} messages are gone"
    assert count >= 100 * ROUNDS


def test_a_message_that_is_not_on_the_disk_is_not_accepted(place, tmp_path, monkeypatch):
    """With fsync="always"; the sync that failed was swallowed, and only the next call raised."""
    log = LogConfig(tmp_path, fsync="always")
    feed = p2pmsg.MoldPublisher(place, session="S1", log=log)
    assert feed.publish(b"first") == 1
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(p2pmsg.LogFailedError) as failure:
        feed.publish(b"second")
    assert failure.value.__notes__ == ["0 of 1 messages were accepted"]
    with pytest.raises(p2pmsg.LogFailedError):
        feed.publish(b"third")
    assert feed.stats().published == 1
    monkeypatch.undo()
    with pytest.raises(p2pmsg.LogFailedError, match="forced to the disk"):
        feed.close(0.0)


def test_an_interrupt_between_log_and_socket_costs_a_sequence_and_no_more(
    place, tmp_path, make_subscriber, monkeypatch
):
    feed = p2pmsg.MoldPublisher(place, session="S1", log=LogConfig(tmp_path))
    feed.publish(b"first")
    append = MoldLog.append

    def interrupted(log, sequence, packet):
        append(log, sequence, packet)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MoldLog, "append", interrupted)
        with pytest.raises(KeyboardInterrupt):
            feed.publish_many([b"x" * 700] * 5)
    last = feed.publish(b"last")
    assert 2 < last < 7
    port = feed.request_address[1]
    asked = place.replace("request=127.0.0.1:0", f"request=127.0.0.1:{port}")
    late = make_subscriber(asked, start="earliest")
    values = [late.receive(5).value for _ in range(last)]
    assert values == [b"first", *[b"x" * 700] * (last - 2), b"last"]
    feed.close(0.0)


def refuse(fd):
    raise OSError(5, "Input/output error")


if __name__ == "__main__":
    import sys

    publish_until_killed(*sys.argv[2:])
