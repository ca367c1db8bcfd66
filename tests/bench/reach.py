"""Reach: p2pmsg and programs that are not p2pmsg's."""

from collections.abc import Iterator

from tests.bench import reach_bridge, reach_http, reach_pipeline, reach_webhooks
from tests.bench.harness import Plan
from tests.bench.report import Row


def run(plan: Plan) -> Iterator[Row]:
    """Yield the rows of the area as they are measured."""
    yield from reach_bridge.run(plan)
    yield from reach_webhooks.run(plan)
    yield from reach_pipeline.run(plan)
    yield from reach_http.run(plan)
