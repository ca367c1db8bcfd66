"""What goes wrong and is tried again: said when it begins, once a minute, and when it is over."""

from p2pmsg.trouble import Rarely, Trouble


def test_one_that_comes_and_goes_begins_once_a_minute(caplog):
    trouble = Trouble("place", "nothing is lost", Rarely())
    for now_ns in range(100):
        trouble.note("failed", now_ns=now_ns)
        trouble.over()
    assert [record.getMessage() for record in caplog.records] == [
        "place: failed. It is tried again; nothing is lost",
        "place: it works again, after 1 failures",
    ]


def test_one_that_lasts_is_said_once_a_minute(caplog):
    trouble = Trouble("place", "nothing is lost", Rarely())
    for seconds in range(130):
        trouble.note("failed", now_ns=seconds * 10**9)
    assert len(caplog.records) == 3
    assert trouble.what == "failed"
