"""What threaded pipelines are tested with, at pushers and pullers of asyncio."""

import pytest

from p2pmsg.queue import PipelineConfig
from tests.integration import test_pipeline
from tests.integration.looped import LoopedPuller, LoopedPusher
from tests.integration.peers import LOOPBACK
from tests.integration.test_pipeline import (
    children,
    test_a_killed_pullers_share_goes_to_others_and_nothing_is_lost,
    test_a_puller_goes_on_with_the_next_pusher_and_keeps_what_it_had,
    test_a_slow_puller_does_not_hold_up_the_others,
    test_a_stopped_pullers_share_goes_to_another_and_it_may_come_back,
)

__all__ = [
    "children",
    "test_a_killed_pullers_share_goes_to_others_and_nothing_is_lost",
    "test_a_puller_goes_on_with_the_next_pusher_and_keeps_what_it_had",
    "test_a_slow_puller_does_not_hold_up_the_others",
    "test_a_stopped_pullers_share_goes_to_another_and_it_may_come_back",
]

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def of_loops(monkeypatch):
    """Have the tests make peers of asyncio."""

    def pusher(endpoint=LOOPBACK, **options):
        return LoopedPusher(endpoint, mode="pipeline", config=PipelineConfig(**options))

    monkeypatch.setattr(test_pipeline, "pusher", pusher)

    def puller(endpoint):
        return LoopedPuller(endpoint, mode="pipeline")

    monkeypatch.setattr(test_pipeline, "puller", puller)
