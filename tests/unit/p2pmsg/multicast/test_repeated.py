import pytest

from p2pmsg.multicast.repeated import RepeatedShare

S = 1_000_000_000
MB = 1_000_000


def test_what_is_mostly_sent_again_is_said_with_the_limit_that_helps():
    share = RepeatedShare(1_250_000_000)
    assert share.check(4 * MB, MB, 0) is None
    said = share.check(44 * MB, 39 * MB, 2 * S)
    assert said.startswith("38.0 of the 40.0 MB that were sent in the last 2.0 s had been sent")
    assert "rate_limit_bytes_s=…), 1,250,000,000 here" in said


@pytest.mark.parametrize(
    ("sent", "repaired", "after_s"),
    [(40 * MB, 19 * MB, 2), (MB, MB, 2), (40 * MB, 39 * MB, 1.9)],
    ids=["less than half", "little", "not for long"],
)
def test_nothing_is_said_where_it_is_no_burden(sent, repaired, after_s):
    share = RepeatedShare(1)
    share.check(0, 0, 0)
    assert share.check(sent, repaired, int(after_s * S)) is None
