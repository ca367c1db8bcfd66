"""The circumstances under which the promise is tested, and one run under each."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from p2pmsg.subscriber.policy import GapPolicy
from p2pmsg.testing.host import WALL_NS
from tests.simulation.faults import simulate
from tests.simulation.simulator import Simulation

SETTLE_S = 30.0


@dataclass(frozen=True)
class Profile:
    """What a simulation is made of; `joiners` are the starts of subscribers that come midway."""

    options: dict[str, Any] = field(default_factory=dict)
    starts: tuple[Any, ...] = ("earliest", "latest")
    joiners: tuple[Any, ...] = ()
    on_gap: str = "wait"
    publishers: int = 1
    lines: int = 1
    run_time: float = 0.4


CLEAN = Profile()
TIGHT = {
    "receive_bytes": 64 * 1024,
    "bytes_max": 6000,
    "replay_bytes": 80_000,
    "queue_frames": 4,
    "stall_timeout": 0.05,
}
"""So little space that every bound is met."""
EVERYTHING = {
    "loss": 0.1,
    "duplication": 0.1,
    "reordering": 0.1,
    "partitions_per_s": 2,
    "cuts_per_s": 4,
    "publisher_crashes_per_s": 1,
    "subscriber_crashes_per_s": 1,
    "read_stops_per_s": 2,
    "partition_time": 0.1,
    "restart_delay": 0.1,
    "read_stop_time": 0.15,
}

ONE_WAY = {"one_way_paths_per_s": 0.5, "one_way_time": 7.0, "messages_per_s": 20}
"""So long that publishers are asked over the recovery channel."""
NARROW = {"narrow_paths_per_s": 0.5, "narrow_time": 5.0, "narrow_bytes": 90, "messages_per_s": 50}
"""So small that announcements and heartbeats come, and hardly any data."""
MANY = {"loss": 0.2, "topics": 4, "messages_per_s": 100}

PROFILES = {
    "clean": CLEAN,
    "10 % lost": Profile({"loss": 0.1}),
    "50 % lost": Profile({"loss": 0.5}),
    "twice and out of order": Profile({"duplication": 0.2, "reordering": 0.3, "loss": 0.02}),
    "slow network": Profile({"delay": (0.04, 0.16), "loss": 0.05}),
    "partitions": Profile({"partitions_per_s": 4, "partition_time": 0.15}),
    "long partitions": Profile({"partitions_per_s": 1, "partition_time": 4.0}, run_time=2.0),
    "cuts": Profile({"cuts_per_s": 20, "loss": 0.02}),
    "dead data paths": Profile({**ONE_WAY, "loss": 0.05}, run_time=12.0),
    "dead data paths, publisher crashes": Profile(  # which then cannot be reached at all
        {**ONE_WAY, "log": True, "publisher_crashes_per_s": 0.1, "repair_timeout": 60.0},
        run_time=12.0,
    ),
    "publisher crashes": Profile(
        {"publisher_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
    ),
    "subscriber crashes": Profile(
        {"subscriber_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
    ),
    "slow reader": Profile({**TIGHT, "read_time": 0.015}),
    "reader stops": Profile({**TIGHT, "read_stops_per_s": 4, "read_stop_time": 0.2, "loss": 0.05}),
    "reader stops, drop": Profile({**TIGHT, "read_stops_per_s": 4, "on_full": "drop"}),
    "reader stops, raise": Profile({**TIGHT, "read_stops_per_s": 4, "on_full": "raise"}),
    "many topics in little space": Profile(
        {**TIGHT, "topics": 12, "loss": 0.2, "replay_bytes": 10**6, "messages_per_s": 400}
    ),
    "hardly any heartbeats": Profile(
        {"topics": 12, "loss": 0.1, "heartbeat_loss": 0.99, "messages_per_s": 400}
    ),
    "everything": Profile(EVERYTHING, publishers=2),
    "everything in little space": Profile({**EVERYTHING, **TIGHT}),
    "two lines to each publisher": Profile({"loss": 0.2, "cuts_per_s": 5}, lines=2),
    "joins midway": Profile({"loss": 0.05}, joiners=("earliest", "latest", 5, "time")),
    "joins midway, little kept": Profile(
        {"loss": 0.05, "replay_bytes": 3000}, joiners=("earliest", "latest", 5, "time")
    ),
    "skip": Profile({"loss": 0.1, "cuts_per_s": 4}, starts=("latest",), on_gap="skip"),
    "newest values": Profile({"loss": 0.1, "read_time": 0.005}, on_gap="latest"),
    "newest values, everything": Profile(
        {**EVERYTHING, **TIGHT, "read_time": 0.01}, on_gap="latest"
    ),
    "many join at once": Profile(MANY, starts=("latest",), joiners=("latest", "earliest") * 6),
    "many join at once, little space": Profile(
        {**MANY, "queue_frames": 4, "cuts_per_s": 4, "read_time": 0.002},
        starts=("latest",),
        joiners=("latest", "earliest") * 6,
    ),
}

GROUP = {"multicast": "open"}
SEALED = {"multicast": "sealed", "rotations_per_s": 20}
LOGGED = {"log": True, "publisher_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
RESUMED = {"cursor": True, "subscriber_crashes_per_s": 8, "restart_delay": 0.05, "loss": 0.05}
SMALL = {**TIGHT, "bytes_max": 1500, "replay_bytes": 20_000}
STOPPED = {"process_stops_per_s": 8, "process_stop_time": 0.1, "buffer_bytes": 4096}
MULTICAST = {
    "clean": Profile(GROUP),
    "5 % lost": Profile({**GROUP, "loss": 0.05}),
    "20 % lost": Profile({**GROUP, "loss": 0.2}),
    "50 % lost": Profile({**GROUP, "loss": 0.5}),
    "all lose the same": Profile({**GROUP, "shared_loss": 0.1}, starts=("latest",) * 4),
    "nothing reaches it by UDP": Profile({**GROUP, "answers_loss": 1.0, "loss": 0.2}),
    "twice and out of order": Profile(
        {**GROUP, "duplication": 0.2, "reordering": 0.3, "loss": 0.02}
    ),
    "large messages": Profile({**GROUP, "loss": 0.1, "bytes_max": 3000}),
    "slow network": Profile({**GROUP, "delay": (0.04, 0.16), "loss": 0.05}),
    "partitions": Profile({**GROUP, "partitions_per_s": 4, "partition_time": 0.15, "loss": 0.02}),
    "cuts": Profile({**GROUP, "cuts_per_s": 20, "loss": 0.02}),
    "dead data paths": Profile({**GROUP, **ONE_WAY, "loss": 0.05}, run_time=12.0),
    "dead data paths, receiver stops": Profile(
        {**GROUP, **ONE_WAY, "process_stops_per_s": 0.3, "process_stop_time": 7.0}, run_time=12.0
    ),
    "narrow paths": Profile({**GROUP, **NARROW, "bytes_max": 300, "loss": 0.05}, run_time=12.0),
    "publisher crashes": Profile(
        {**GROUP, "publisher_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
    ),
    "subscriber crashes": Profile(
        {**GROUP, "subscriber_crashes_per_s": 5, "restart_delay": 0.05, "loss": 0.05}
    ),
    "reader stops": Profile(
        {**GROUP, **SMALL, "read_stops_per_s": 4, "read_stop_time": 0.2, "loss": 0.05}
    ),
    "receiver stops": Profile({**GROUP, **STOPPED, "loss": 0.05}),
    "receiver stops, logs": Profile({**GROUP, **STOPPED, **LOGGED, "replay_bytes": 2000}),
    "slow reader in little space, logs": Profile(
        {**GROUP, **SMALL, **LOGGED, "read_time": 0.015, "bytes_max": 6000}
    ),
    "everything": Profile({**GROUP, **EVERYTHING}, publishers=2),
    "everything in little space": Profile({**GROUP, **EVERYTHING, **SMALL}),
    "two lines to each publisher": Profile({**GROUP, "loss": 0.2}, lines=2),
    "joins midway": Profile({**GROUP, "loss": 0.05}, joiners=("earliest", "latest", 5, "time")),
    "skip": Profile({**GROUP, "loss": 0.1}, starts=("latest",), on_gap="skip"),
    "logs": Profile({**GROUP, **LOGGED}),
    "logs, little buffer": Profile(
        {**GROUP, **LOGGED, "replay_bytes": 2000}, joiners=("earliest", "latest", 5, "time")
    ),
    "logs, synced always": Profile({**GROUP, **LOGGED, "fsync": "always"}),
    "logs, systems crash": Profile({**GROUP, **LOGGED, "system_crashes": 1.0, "fsync": "never"}),
    "cursors": Profile({**GROUP, **RESUMED}, joiners=("earliest", "latest", 5, "time")),
    "logs and cursors": Profile({**GROUP, **LOGGED, **RESUMED}),
    "everything, logs and cursors": Profile(
        {**GROUP, **EVERYTHING, "log": True, "cursor": True, "system_crashes": 0.3}, publishers=2
    ),
    "sealed": Profile({**SEALED, "loss": 0.05}, joiners=("earliest", "latest", 5, "time")),
    "sealed, everything": Profile({**SEALED, **EVERYTHING}, publishers=2, lines=2),
    "sealed, large messages, logs": Profile({**SEALED, **LOGGED, "bytes_max": 3000}),
    "signed": Profile(
        {**SEALED, "multicast": "signed", "loss": 0.05}, joiners=("earliest", "latest")
    ),
    "parity": Profile({**GROUP, "loss": 0.05, "parity": 2}),
    "parity, everything": Profile({**GROUP, **EVERYTHING, "parity": 1}),
}


def build(profile: Profile, seed: int, **changes: Any) -> Simulation:
    """Return a simulation under a profile, with its first participants."""
    options = {"messages_per_s": 250, **profile.options, **changes}
    simulation = simulate(seed, **options)
    for _ in range(profile.publishers):
        simulation.add_publisher()
    for start in profile.starts:
        add_subscriber(simulation, profile, start)
    return simulation


def add_subscriber(simulation: Simulation, profile: Profile, start: Any) -> None:
    """Add a subscriber; the start `time` is a time about 100 ms ago."""
    if start == "time":
        wall_ns = WALL_NS + simulation.clock.now_ns - 10**8
        start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=wall_ns // 1000)
    simulation.add_subscriber(
        simulation.publishers * profile.lines,
        start=start,
        policy=GapPolicy(profile.on_gap),
    )


def run(simulation: Simulation, profile: Profile, quiet: float = 2.0) -> None:
    """Run a simulation to its end and check it; `AssertionError` names the seed."""
    simulation.run(profile.run_time / 2)
    for start in profile.joiners:
        add_subscriber(simulation, profile, start)
    simulation.run(profile.run_time / 2)
    simulation.heal()
    simulation.drain(SETTLE_S)
    simulation.check(quiet)
