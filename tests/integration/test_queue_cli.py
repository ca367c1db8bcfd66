"""`p2pmsg push`, `pull`, `request` and `dead-letters`, as a user runs them."""

import json
import re
import signal

import pytest

import p2pmsg
from tests.integration.commands import command, run_here
from tests.integration.peers import eventually


@pytest.fixture
def place(tmp_path):
    return f"ipc://{tmp_path}/queue"


def test_each_line_is_a_job_and_the_exit_status_decides(tmp_path, place):
    script = f'read n; echo "$n $P2PMSG_KEY" >> {tmp_path}/done; [ "$n" != 3 ]'
    with (
        command(tmp_path, "pull", place, "--prefetch", "2", "--", "sh", "-c", script),
        command(tmp_path, "push", place, "--deliveries", "1") as pushing,
    ):
        pushing.write(b"1\n2\n3\n4\n")
        pushing.process.stdin.close()

        assert pushing.wait() == 1
    assert "3 done, 1 dead letters, 0 not done" in pushing.errors()
    assert sorted((tmp_path / "done").read_text().split()) == ["1", "2", "3", "4"]


@pytest.mark.long
@pytest.mark.parametrize(("end", "status"), [([], 0), (["--count", "9"], 143)])
def test_a_pull_is_stopped_cleanly_unless_it_had_an_end_of_its_own(tmp_path, place, end, status):
    with p2pmsg.Pusher(place) as pusher, command(tmp_path, "pull", place, *end) as pulling:
        pusher.push("a job")
        pusher.join(timeout=60)
        pulling.process.send_signal(signal.SIGTERM)
        assert pulling.wait() == status
        assert pulling.errors() == ""


@pytest.mark.long
def test_a_pipeline_prints_its_jobs_and_its_end_says_how_many_were_done(tmp_path, place):
    with command(tmp_path, "pull", place, "--acknowledge", "batch", "--count", "3") as pulling:
        lines = b'1\n{"a":2}\n"x"\n'
        ended = run_here("push", place, "--acknowledge", "batch", "--json", stdin=lines)
        assert ended.returncode == 0, ended.stderr
        assert b"3 done, 0 dead letters, 0 not done" in ended.stderr
        assert pulling.wait() == 0
        assert pulling.output() == b'1\n{"a":2}\nx\n'


@pytest.mark.long
def test_a_pipelines_command_that_fails_is_named_and_its_job_not_tried_again(tmp_path, place):
    script = f'read n; echo "$n $P2PMSG_SEQUENCE" >> {tmp_path}/done; [ "$n" != b ]'
    with command(tmp_path, "push", place, "--acknowledge", "batch") as pushing:
        pushing.write(b"a\nb\nc\n")
        pushing.process.stdin.close()
        arguments = ("--acknowledge", "batch", "--count", "3", "--", "sh", "-c", script)
        ended = run_here("pull", place, *arguments)
        assert ended.returncode == 1
        assert b"job 1 failed: " in ended.stderr
        assert pushing.wait() == 0
    assert (tmp_path / "done").read_text() == "a 0\nb 1\nc 2\n"


@pytest.mark.long
@pytest.mark.parametrize("own", [[], ["--job-timeout", "60"]], ids=["without", "with"])
def test_a_command_may_take_longer_than_the_pushers_job_timeout(tmp_path, place, own):
    script = f"touch {tmp_path}/begun; until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    with (
        p2pmsg.Pusher(place, job_timeout=0.2) as pusher,
        p2pmsg.Puller(place) as other,
        command(tmp_path, "pull", place, "--count", "1", *own, "--", "sh", "-c", script) as pulling,
    ):
        eventually(lambda: len(pusher.stats().workers) == 2)
        for number in range(2):
            pusher.push(number)
        eventually((tmp_path / "begun").exists)
        other.receive(timeout=60)
        eventually(lambda: pusher.stats().failed)  # at the other one, after the same time
        (tmp_path / "go").touch()
        assert (pulling.wait(), pulling.errors()) == (0, "")
        assert pusher.stats().done == 1


def test_dead_letters_of_a_pusher_that_runs(tmp_path, place):
    with (
        p2pmsg.Pusher(place) as pusher,
        p2pmsg.Puller(place) as puller,
    ):
        for number in range(3):
            pusher.push({"n": number}, key=f"k{number}")
            puller.receive(timeout=60).discard(f"bad {number}")
        eventually(lambda: len(pusher.dead_letters()) == 3)

        listed = run_here("dead-letters", "ls", place)
        assert listed.returncode == 0, listed.stderr
        assert re.search(r"discarded +k1 +bad 1 +1 +1", listed.stdout.decode())
        shown = run_here("dead-letters", "show", place, "1", "--json")
        letter = json.loads(shown.stdout)
        assert (letter["value"], letter["history"][0]["reason"]) == ({"n": 1}, "bad 1")
        assert run_here("dead-letters", "purge", place, "0").stdout == b"1 thrown away\n"
        assert run_here("dead-letters", "retry", place, "--all").stdout == b"2 made jobs again\n"
        for _ in range(2):
            puller.receive(timeout=60).ack()
        pusher.join(timeout=60)
        assert not pusher.dead_letters()


def test_dead_letters_of_a_log(tmp_path, place):
    log = str(tmp_path / "log")
    with (
        p2pmsg.Pusher(place, log=log) as pusher,
        p2pmsg.Puller(place) as puller,
    ):
        for number in range(2):
            pusher.push(number)
            puller.receive(timeout=60).discard(f"bad {number}")
        eventually(lambda: len(pusher.dead_letters()) == 2)
        assert b"bad 1" in run_here("dead-letters", "ls", log).stdout
        refused = run_here("dead-letters", "retry", log, "0")
        assert refused.returncode == 1
        assert b"in use by another writer" in refused.stderr

    assert run_here("dead-letters", "retry", log, "0").stdout == b"1 made jobs again\n"
    assert run_here("dead-letters", "purge", log, "1").stdout == b"1 thrown away\n"
    assert run_here("dead-letters", "purge", log, "1").returncode == 1
    with p2pmsg.Pusher(place, log=log) as pusher, p2pmsg.Puller(place) as puller:
        assert pusher.stats().restored == 1
        assert not pusher.dead_letters()
        with puller.receive(timeout=60) as job:
            assert job.value == 0
        pusher.join(timeout=60)


def test_requests(place):
    with p2pmsg.Responder(place, {"square": lambda n: n * n, "fail": lambda n: 1 / 0}):
        assert run_here("request", place, "square", "12", "--json").stdout == b"144\n"
        failed = run_here("request", place, "fail")
        assert failed.returncode == 1
        assert b"ZeroDivisionError: division by zero" in failed.stderr
        answered = run_here("request", place, "square", "3", "--json", "--all")
        assert json.loads(answered.stdout) == {"responder": place, "answer": 9}
    assert run_here("request", place, "square", "--timeout", "0.3").returncode == 1
