"""What a process does, seen from outside."""

import time
from pathlib import Path


def is_asleep(process):
    """Say whether a process waits, for 0.1 s by now: one that only has no core is not asleep.

    So a signal that it was sent before has been handled.
    """
    for _ in range(20):
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]
        if state != "S":
            return False
        time.sleep(0.005)
    return True
