"""Rounds of SIGKILL, of workers and of the pusher, under load."""

import json
import subprocess
import sys

import pytest


@pytest.mark.rounds(40, 1000)
@pytest.mark.timeout(900)
def test_no_job_is_forgotten_and_keys_keep_their_order_through_kills(tmp_path, rounds):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.queue_rounds", tmp_path, str(rounds), "7"],
        capture_output=True, timeout=850, text=True,
    )  # fmt: skip

    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["done"] + found["dead"] >= found["pushed"] > rounds
