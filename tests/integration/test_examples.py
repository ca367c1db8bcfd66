"""The examples run and end by themselves."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endpoints import free_port
from tests.integration.test_examples_interrupted import ARGUMENTS, SPARK

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name, *arguments):
    """Run an example; return its standard output and its standard error."""
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, timeout=60, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout, ended.stderr


@pytest.fixture
def run_here(monkeypatch, capsys, caplog):
    """Run an example as `run_example`, but in this process: one that starts none itself.

    What the library logs would stand on standard error.
    """

    def run_here(name, *arguments):
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        said = capsys.readouterr()
        return said.out, said.err + caplog.text

    return run_here


@pytest.mark.parametrize("name", [*ARGUMENTS])
def test_an_example_has_help_and_refuses_a_wrong_argument(name, monkeypatch, capsys):
    if name in SPARK:
        pytest.importorskip("statsd" if name == "statsd_metrics" else "pyspark")
    monkeypatch.syspath_prepend(EXAMPLES)
    for argument, status in (("--help", 0), ("--nonsense", 2)):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", argument])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        said = capsys.readouterr()
        assert ended.value.code == status
        assert said.out.startswith(f"usage: {name}.py") == (status == 0)


def test_quickstart(tmp_path):
    shown, _ = run_example("quickstart.py", f"ipc://{tmp_path}/feed")

    # Two processes print at once, so a line of one may stand within a line of the other.
    assert shown.count("published ") == 5
    assert shown.count("received  ") == 5
    assert "delivered 5 of 5, lost 0" in shown


def test_secure_feed(run_here):
    shown, errors = run_here("secure_feed.py")

    assert shown.splitlines() == [
        "bars got ['trades'] from the publisher, and may not have ['positions', 'quotes']",
        "screen got ['quotes'] from the relay, and may not have ['positions', 'trades']",
        "an unknown program: AuthenticationError",
    ]
    assert "Traceback" not in errors


def test_webhook_out(run_here):
    pytest.importorskip("aiohttp", reason="the extra webhooks is not installed")
    shown, errors = run_here("webhook_out.py")

    found = re.fullmatch(r"20 of 20 orders arrived, in (\d+) requests\n", shown)
    assert int(found[1]) >= 20
    assert "Traceback" not in errors


def test_webhook_in(run_here):
    pytest.importorskip("uvicorn", reason="the extra webhooks is not installed")
    shown, errors = run_here("webhook_in.py")

    assert shown == "10 of 10 published, 10 came again, the forged one got 401\n"
    assert errors == ""


@pytest.mark.long  # the consumer itself is killed in the next one
def test_durable_consumer():
    shown, errors = run_example("durable_consumer.py")

    found = re.fullmatch(r"killed (\d+) times; published (\d+), in the table (\d+)\n", shown)
    kills, published, rows = map(int, found.groups())
    assert kills >= 3
    assert rows == published > 0
    assert "Traceback" not in errors


@pytest.mark.long  # it takes seconds; test_examples_interrupted.py runs it for a moment
def test_relay():
    shown, errors = run_example("relay.py")

    found = re.match(
        r"the relay has (\d+), who was there got (\d+), who came late (\d+)\nlost 0;", shown
    )
    received, early, late = map(int, found.groups())
    assert 1000 < received == late <= early
    assert errors == ""


def test_typed(run_here, tmp_path):
    shown, errors = run_here("typed.py", f"ipc://{tmp_path}/typed")

    assert "trades 250: Expected `decimal`, got `null`, at $.price" in shown
    assert "quotes.us 0: Object missing required field `ask`, at $" in shown
    assert "499 trades of Decimal 31125.00" in shown
    assert "delivered 502, of which 2 did not fit" in shown
    assert errors == ""


def test_gui_latest(run_here):
    shown, errors = run_here("gui_latest.py", "0.5")

    sent, delivered, conflated, lost = (
        int(re.search(rf"{name} ([\d,]+)", shown)[1].replace(",", ""))
        for name in ("sent", "delivered", "conflated", "lost")
    )
    assert delivered + conflated == sent
    assert delivered > 0 == lost
    assert "each symbol shows its last price" in shown
    assert errors == ""


@pytest.mark.long  # as test_relay
def test_task_queue(tmp_path):
    shown, _ = run_example("task_queue.py", f"ipc://{tmp_path}/queue")

    assert shown.count("killed a worker") == 6
    assert "600 of 600 done" in shown
    assert shown.rstrip().endswith("0 dead")


def test_ordered_orders(run_here, tmp_path):
    shown, _ = run_here("ordered_orders.py", f"ipc://{tmp_path}/queue")

    assert "100 of 100 orders were paid, packed and shipped in this order" in shown


def test_scatter_gather(run_here, tmp_path):
    shown, _ = run_here("scatter_gather.py", str(tmp_path))

    assert "2 of 3 answered in time, the best ask is 61680.5" in shown
    assert f"no answer from ipc://{tmp_path}/exchange-2" in shown
    assert "LookupError: NOTHING is not traded here" in shown


def test_aio_service(run_here, tmp_path):
    shown, errors = run_here("aio_service.py", str(tmp_path))

    assert "20 of 20 orders were accepted" in shown
    assert shown.count("is tried again: no bell is in stock") == 5
    assert "20 of 20 are done, by worker 1 and worker 2\ndelivered 20 of 20, lost 0" in shown
    assert errors == ""


@pytest.mark.long
def test_bridge_zeromq():
    shown, _ = run_example("bridge_zeromq.py")

    sent, has, lost = map(int, re.search(r"sent (\d+).* has (\d+), of which (\d+)", shown).groups())
    assert 0 < has < sent
    assert lost == 0
    assert f"{sent - has} were dropped while no bridge was there, 0 afterwards" in shown
    assert "100 of 100 jobs were done, 10 of them at the second try" in shown


@pytest.mark.long  # the same is a page of the guide, in test_guide.py
def test_market_feed():
    group = f"udp://239.255.1.1:{free_port()}?interface=127.0.0.1"
    shown, _ = run_example("market_feed.py", group)

    assert shown.count("20000 of 20000 delivered, 0 lost") == 2
