"""Writers of a log are killed at random points; whatever they had appended is there."""

import json
import subprocess
import sys
import time

import pytest

from recovery.log import LogReader, verify
from tests.integration.log_kills import TOPICS, read

ROUNDS = 250


@pytest.mark.timeout(180)
def test_killed_writers_lose_nothing_and_use_no_sequence_twice(tmp_path):
    seed = time.time_ns() % 2**32
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.log_kills", tmp_path, str(ROUNDS), str(seed)],
        capture_output=True, text=True, timeout=150,
    )  # fmt: skip
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr}"
    seen = json.loads(ended.stdout)

    assert seen["rounds"] == ROUNDS
    assert seen["frames"] > 10 * ROUNDS
    assert seen["closed"] > ROUNDS // 3
    reader = LogReader(tmp_path)
    assert set(read(reader)) == set(TOPICS)
    reader.close()
    assert list(verify(tmp_path)) == []
