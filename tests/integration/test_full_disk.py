"""A disk that is really full: a small tmpfs of the child's own. It says so, and goes on later.

A store to a mapped page that has no place on a full disk kills a process with SIGBUS; a publisher's
tail file is mapped.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

import p2pmsg
from p2pmsg import LogConfig
from tests.integration.peers import LOOPBACK, ROOT, Child, take

assert LogConfig
_MOUNT = 'mount -t tmpfs -o size="$1" disk "$2" && shift 2 && exec "$@"'


@pytest.fixture
def on_small_disk(tmp_path, opened):
    """Start a child that has a small disk of its own at its second argument."""
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else [
        "unshare", "--user", "--map-root-user", "--mount"
    ]  # fmt: skip
    place = tmp_path / "disk"
    place.mkdir()
    within = [*apart, "sh", "-c", _MOUNT, "sh"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(
            [*within, "64k", str(place), "true"], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("no disk of its own can be mounted here (unshare, mount)")

    def start(role, how, size="16m"):
        module = "tests.integration.full_disk_children"
        program = [sys.executable, "-W", "error", "-m", module, role, LOOPBACK, str(place), how]
        process = subprocess.Popen(
            [*within, size, str(place), *program],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        child = Child(process)
        opened.callback(child.finish)
        return child

    return start


@pytest.mark.parametrize("how", ["interval", "always"])
def test_a_publisher_says_that_the_disk_is_full_and_goes_on_when_it_has_space(
    on_small_disk, make_subscriber, how
):
    child = on_small_disk("fill", how)
    subscriber = make_subscriber(json.loads(child.line())["endpoint"], start="earliest")
    child.order("go")
    said = json.loads(child.line())
    assert said["before"] == 0
    assert how == "always" or said["gathered"] > 100  # these have their place already
    assert "No space left" in said["error"]
    assert said["errno"] is not None or how == "always"
    assert said["counted"]
    assert said["failed"] is None
    assert "No space left" in said["retrying"]
    assert "is tried again; nothing new is accepted" in " ".join(said["said"])
    assert len(said["said"]) <= 4  # of a write, of a sync and of retention, not of each try
    child.order("make space")
    after = json.loads(child.line())
    assert after["errors"] == 0
    assert after["retrying"] is None
    assert "it works again" in " ".join(after["said"])
    got = take(subscriber, sum(after["heads"].values()))
    by_topic = {}
    for message in got:
        by_topic.setdefault(message.topic, []).append(message.sequence)
    assert all(found == list(range(len(found))) for found in by_topic.values())
    child.order("end")
    assert (end := json.loads(child.line()))["logged"] == [
        after["heads"][f"t{number}"] for number in range(len(end["logged"]))
    ]
    assert all(map(int.__ge__, end["logged"], end["accepted"]))
    assert child.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["threads", "loop"])
def test_a_publisher_that_outruns_its_rounds_does_not_fill_the_disk_with_what_is_too_old(
    on_small_disk, how
):
    child = on_small_disk("outrun", how, "8m")
    said = json.loads(child.line())
    assert said["errors"] == []
    assert said["size"] <= (3 + 2) * 2**20 + 600_000  # a frame has up to 500 messages
    assert said["next"] == said["accepted"] == 30_000
    assert child.wait() == 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["interval", "always"])
def test_a_publisher_that_begins_on_a_full_disk_says_so(on_small_disk, how):
    child = on_small_disk("begin", how, "8m")
    assert "No space left" in json.loads(child.line())["error"]
    assert json.loads(child.line())["endpoint"]
    said = json.loads(child.line())
    assert said["errors"]
    assert "No space left" in said["error"]
    assert child.wait() == 0


@pytest.mark.parametrize("how", ["interval", "always"])
def test_a_pusher_says_that_the_disk_is_full_and_goes_on_when_it_has_space(
    on_small_disk, opened, how
):
    child = on_small_disk("push", how, "1m")
    endpoint = json.loads(child.line())["endpoint"]
    child.order("go")
    said = json.loads(child.line())
    assert set(range(20)) | set(range(41, 60)) <= set(said["accepted"])
    assert "No space left" in said["error"]
    puller = opened.enter_context(p2pmsg.Puller(endpoint))
    child.order("drain")
    done = []
    while len(done) < len(said["accepted"]):
        with puller.receive(timeout=60) as job:
            done.append(job.value[0])
    assert done == said["accepted"]
    assert child.wait() == 0


@pytest.mark.parametrize("how", ["explicit", "message"])
def test_a_cursor_says_that_the_disk_is_full_and_commits_when_it_has_space(on_small_disk, how):
    child = on_small_disk("commit", how, "2m")
    said = json.loads(child.line())
    assert {text.partition("cannot be used: ")[2] for text in said["errors"]} == {
        "database or disk is full"
    }
    assert said["after"] == []
    assert said["returned"] == list(range(len(said["returned"])))
    assert child.wait() == 0


@pytest.mark.long
def test_webhooks_are_known_over_kills_on_a_full_disk(on_small_disk):
    child = on_small_disk("seen", "", "8m")
    before, during, after = (json.loads(child.line()) for _ in range(3))
    assert before == {"missing": [], "unwritten": 0, "failures": 0}
    assert during["missing"] == []
    assert during["failures"] > 1
    assert during["unwritten"] == 0
    assert after == {"missing": [], "unwritten": 0, "failures": 0}
    assert json.loads(child.line())["error"].endswith("No space left on device")
    assert child.wait() == 0
