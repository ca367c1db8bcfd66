"""The memo beside a relay's log, on a disk that is full for a while."""

import errno
import os

from p2pmsg.relay.metadata import WRITE_NS, RelayMemo
from recovery.log import MemoryStore


def test_a_memo_that_cannot_be_written_is_written_later_and_says_so(caplog):
    store = MemoryStore()
    memo = RelayMemo(store)
    memo.write()
    memo.note_session(7, "feed", 1)
    store.failing["replace"] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for turn in range(20):
        memo.write(now_ns=turn * WRITE_NS)
    assert memo.errors == 20
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text
    store.failing.clear()
    memo.write(now_ns=20 * WRITE_NS)
    assert "again" in caplog.records[-1].message
    assert RelayMemo(store).session(7) == ("feed", 1)
