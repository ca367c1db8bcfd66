"""What goes wrong and is tried again: said when it begins, once a minute, and when it is over."""

from transports.trouble import Rarely, Trouble


def test_what_comes_and_goes_is_said_once(caplog):
    trouble = Trouble("place", "nothing is lost")
    for _ in range(100):
        trouble.note("failed")
        trouble.note("failed")
        assert trouble.why == "failed"
        trouble.over()
        assert trouble.why == ""
    assert trouble.count == 200
    assert [record.getMessage() for record in caplog.records] == [
        "place: failed. It is tried again; nothing is lost (failures so far: 1)",
        "place: it works again, after 2 failures",
    ]


def test_what_lasts_is_said_once_a_minute():
    rarely = Rarely()
    assert sum(rarely.is_due(10**15 + second * 10**9) for second in range(130)) == 3
