"""A publisher with a log in a process that may open few files; commands come by stdin."""

import resource
import sys

import p2pmsg
from recovery.log import LogConfig

directory, files = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_NOFILE, (int(files), int(files)))
log = LogConfig(directory, segment_bytes=64 * 1024, fsync="always")
with p2pmsg.Publisher("tcp://127.0.0.1:0", log=log) as publisher:
    print(publisher.endpoint, publisher.recovery_endpoint, flush=True)
    for line in sys.stdin:
        for _ in range(int(line)):
            publisher.publish("t", b"x" * 1000)
            publisher.flush()
        stats = publisher.stats()
        print(
            stats.streams["t"][1], stats.log.failed, stats.connections, stats.connections_refused,
            flush=True,
        )  # fmt: skip
    publisher.close(timeout=0)
