import pytest

from recovery import Loss, LossReason
from recovery.loss import LossRanges

E, T = LossReason.EVICTED, LossReason.TIMEOUT


def test_reasons_read_as_their_words():
    assert [str(reason) for reason in LossReason] == [
        "evicted", "timeout", "publisher_gone", "budget", "crash", "skipped", "malformed",
        "overflow", "rewound", "denied", "too_old", "too_large",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "merge", "kept"),
    [
        pytest.param([(0, 2, E), (2, 3, E)], False, [(0, 3, E)], id="touching, one reason"),
        pytest.param([(2, 3, E), (0, 2, E)], False, [(0, 3, E)], id="touching before"),
        pytest.param([(0, 1, E), (2, 3, E), (1, 2, E)], False, [(0, 3, E)], id="between"),
        pytest.param([(0, 2, E), (2, 3, T)], False, [(0, 2, E), (2, 3, T)], id="two reasons"),
        pytest.param([(0, 2, E), (2, 3, T)], True, [(0, 3, E)], id="two reasons merged"),
        pytest.param([(2, 3, T), (0, 2, E)], True, [(0, 3, T)], id="merged with the next"),
        pytest.param([(0, 1, E), (2, 3, E)], True, [(0, 1, E), (2, 3, E)], id="apart"),
    ],
)
def test_losses_are_coalesced_by_reason(losses, merge, kept):
    ranges = LossRanges()
    for loss in losses:
        ranges.add(Loss(*loss), merge_reasons=merge)
    assert list(ranges) == [Loss(*loss) for loss in kept]


def test_overlap_is_counted_and_losses_leave_at_their_place():
    ranges = LossRanges()
    for loss in [Loss(2, 5, E), Loss(7, 9, T)]:
        ranges.add(loss)
    assert ranges.overlap_count(0, 20) == 5
    assert ranges.overlap_count(4, 8) == 2
    assert ranges.overlap_count(5, 7) == 0
    assert ranges.pop_at(3) is None
    assert ranges.pop_at(7) == Loss(7, 9, T)
    assert ranges.forget_first().count == 3
    assert len(ranges) == 0
