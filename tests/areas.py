"""The areas that `make test ONLY=…` knows, and which files of tests are theirs.

`python -m tests.areas queue,log` says nothing where all of these are areas, else which there are.
"""

import sys
from fnmatch import fnmatch

AREAS = {
    "spine": (),
    "promise": ("simulation/test_promise.py",),
    "interrupts": ("integration/test_struck.py", "integration/test_*interrupt*.py",
                   "integration/test_exit.py", "integration/test_forked.py"),
    "recovery": ("unit/recovery/test_*.py", "property/recovery/*"),
    "log": (
        "unit/recovery/log/*", "unit/p2pmsg/publisher/test_log.py",
        "integration/test_*log*.py", "integration/test_acknowledge.py",
        "integration/test_full_disk.py",
        "unit/p2pmsg/publisher/test_tail_frames.py", "property/test_log_model.py",
        "simulation/test_log.py", "simulation/test_shorter_log.py",
    ),
    "cursor": ("*/test_*cursor*.py", "unit/p2pmsg/subscriber/test_*resume*.py"),
    "relay": ("unit/p2pmsg/relay/*", "*/test_*relay*.py", "integration/test_range_reader.py",
              "integration/test_heads_watch.py"),
    "multicast": (
        "unit/p2pmsg/multicast/*", "unit/transports/test_udp.py", "integration/test_udp_*.py",
        "simulation/test_multicast.py",
    ),
    "mold": ("unit/p2pmsg/mold/*", "*/test_*mold*.py"),
    "queue": ("unit/p2pmsg/queue/*", "*/test_*queue*.py", "*/test_*pipeline.py",
              "integration/test_full_disk.py"),
    "reach": ("unit/p2pmsg/bridge/*", "*/test_bridge*.py",
              "*/test_other_languages.py", "unit/p2pmsg/test_protocol_page.py",
              "unit/p2pmsg/webhooks/*", "*/test_webhooks*.py",
              "integration/test_reach_protocols.py"),
    "requests": ("unit/p2pmsg/requests/*", "integration/test_*requests*.py"),
    "statsd": ("unit/p2pmsg/statsd/*", "property/statsd/*", "*/test_*statsd*.py",
               "*/test_*metrics*.py", "unit/p2pmsg/metrics/*"),
    "spark": ("spark/*",),
    "cli": ("unit/p2pmsg/cli/*", "*/test_*cli*.py"),
    "app": ("unit/p2pmsg/app/*", "integration/test_app*.py", "integration/test_hidden_async.py",
            "integration/test_web_applications.py"),
    "demo": ("unit/demo/*", "*/test_*demo*.py", "*/test_*examples.py"),
    "testing": ("simulation/test_simulator.py", "integration/test_proxy.py",
                "unit/p2pmsg/testing/*", "integration/test_pytest_plugin.py"),
    "asyncio": ("unit/p2pmsg/driver/*", "integration/test_aio_*.py"),
    "structure": ("unit/test_*.py",),
}  # fmt: skip
"""Patterns of paths below `tests/`. A file may be in several; one in no other is the spine's."""
ALIASES = {"pubsub": "spine", "metrics": "statsd"}


def parse(text: str) -> list[str]:
    """Return the areas of a list with commas; ValueError lists them all where one is unknown."""
    areas = [ALIASES.get(area.strip(), area.strip()) for area in text.split(",")]
    for area in areas:
        if area not in AREAS:
            known = ", ".join([*AREAS, *(f"{alias} (= {of})" for alias, of in ALIASES.items())])
            raise ValueError(f"no area {area!r}; there are {known}")
    return areas


def belongs(path: str, areas: list[str]) -> bool:
    """Say whether a file, as a path below `tests/` with slashes, is in one of these areas."""
    found = [area for area in AREAS if any(fnmatch(path, pattern) for pattern in AREAS[area])]
    return not set(found or ["spine"]).isdisjoint(areas)


if __name__ == "__main__":
    try:
        parse(sys.argv[1])
    except ValueError as error:
        sys.exit(f"ONLY: {error}")
