"""Writers of a log are killed at random points; whatever they had appended is there."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from recovery.log import LogReader, verify
from tests.integration.log_kills import read

MEMORY = Path("/dev/shm")
"""What a killed process has written is in the page cache, of whatever file system; here an fsync
takes no time, so that there can be more rounds."""


@pytest.fixture(params=["on the disk", "in memory"])
def place(request, tmp_path, rounds):
    """A directory, and how many rounds to play in it."""
    if request.param == "on the disk" or not os.access(MEMORY, os.W_OK):
        yield tmp_path, -(-rounds // 8)
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield directory, rounds


@pytest.mark.rounds(64, 1600)
@pytest.mark.timeout(900)
def test_killed_writers_lose_nothing_and_use_no_sequence_twice(place):
    directory, rounds = place
    seed = time.time_ns() % 2**32
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.log_kills", directory, str(rounds), str(seed)],
        capture_output=True, text=True, timeout=850,
    )  # fmt: skip
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr}"
    seen = json.loads(ended.stdout)

    assert seen["rounds"] == rounds
    assert seen["frames"] > rounds
    assert seen["closed"] > rounds // 3
    reader = LogReader(directory)
    read(reader)  # it checks what is left; retention may just have taken all but a new segment
    reader.close()
    assert list(verify(directory)) == []
