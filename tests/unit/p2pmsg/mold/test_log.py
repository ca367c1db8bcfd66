"""The log of a Mold publisher: what goes out is in it."""

import errno

from p2pmsg.mold import codec
from p2pmsg.mold.log import MoldLog
from recovery.log import LogConfig

NAME = codec.session_bytes("S1")


def packet(sequence):
    return codec.packets(NAME, sequence, [b"message"], 1400)[0][2]


def test_a_log_that_was_given_up_is_not_waited_for(tmp_path, monkeypatch):
    log = MoldLog(LogConfig(tmp_path, fsync="always", on_error="continue"), NAME, "mold")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("recovery.log.store._File.write", fail)
        log.append(1, packet(1))
    assert "No space left" in log.stats().failed
    assert (log.failure, log.next_deadline_ns(now_ns=0)) == (None, None)
    log.close()
