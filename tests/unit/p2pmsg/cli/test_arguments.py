import contextlib
import signal
from datetime import UTC, datetime

import pytest

from p2pmsg.cli import arguments, main

TCP = "tcp://127.0.0.1:5556"

WRONG = {
    "no command": ([], "name a command"),
    "unknown command": (["watch"], "watch"),
    "unknown option": (["--bogus"], "--bogus"),
    "sub: no endpoint": (["sub"], "ENDPOINT"),
    "sub: endpoint without scheme": (["sub", "127.0.0.1:5556"], "127.0.0.1:5556"),
    "sub: endpoint without port": (["sub", "tcp://127.0.0.1"], "port"),
    "sub: port too high": (["sub", "tcp://127.0.0.1:70000"], "70000"),
    "sub: second endpoint is wrong": (["sub", f"{TCP},tcp://x"], "tcp://x"),
    "sub: empty endpoint": (["sub", ""], "ENDPOINT"),
    "sub: wildcard host": (["sub", "tcp://*:5556"], "wildcard"),
    "sub: port 0": (["sub", "tcp://127.0.0.1:0"], "port 0"),
    "sub: inproc": (["sub", "inproc://feed"], "inproc"),
    "sub: memory": (["sub", "memory://feed"], "memory"),
    "sub: empty topic": (["sub", TCP, ""], "TOPIC"),
    "sub: topic with a star inside": (["sub", TCP, "a**"], "a*"),
    "sub: topic too long": (["sub", TCP, "t" * 256], "255"),
    "sub: unknown option": (["sub", TCP, "--bogus"], "--bogus"),
    "sub: abbreviated option": (["sub", TCP, "--stat"], "--stat"),
    "sub: start in words": (["sub", TCP, "--start", "yesterday"], "yesterday"),
    "sub: start without zone": (["sub", TCP, "--start", "2024-08-09T12:00:00"], "zone"),
    "sub: start a date": (["sub", TCP, "--start", "2024-08-09"], "zone"),
    "sub: no such day": (["sub", TCP, "--start", "2024-02-30T00:00:00Z"], "2024-02-30"),
    "sub: negative start": (["sub", TCP, "--start", "-5"], "-5"),
    "sub: start too high": (["sub", TCP, "--start", str(2**63)], str(2**63)),
    "sub: negative count": (["sub", TCP, "--count", "-1"], "-1"),
    "sub: count 0": (["sub", TCP, "--count", "0"], "at least 1"),
    "sub: count no number": (["sub", TCP, "--count", "ten"], "'ten'"),
    "sub: count of 5,000 digits": (["sub", TCP, "--count", "9" * 5000], "whole number"),
    "sub: negative timeout": (["sub", TCP, "--timeout", "-1"], "-1"),
    "sub: timeout nan": (["sub", TCP, "--timeout", "nan"], "nan"),
    "sub: timeout inf": (["sub", TCP, "--timeout", "inf"], "inf"),
    "sub: timeout without value": (["sub", TCP, "--timeout"], "--timeout"),
    "sub: name too long": (["sub", TCP, "--name", "n" * 256], "255"),
    "sub: line break": (["sub", TCP, "--count", "1\n2"], "1\\n2"),
    "pub: no topic": (["pub", TCP], "TOPIC"),
    "pub: prefix as topic": (["pub", TCP, "trades.*"], "prefix"),
    "pub: two topics": (["pub", TCP, "a", "b"], "b"),
    "pub: bad endpoint": (["pub", "pgm://127.0.0.1:1", "t"], "pgm"),
    "pub: two endpoints": (["pub", f"{TCP},{TCP}", "t"], "5556,tcp"),
    "pub: inproc": (["pub", "inproc://feed", "t"], "inproc"),
    "pub: negative wait": (["pub", TCP, "t", "--wait", "-1"], "at least 0"),
    "pub: negative linger": (["pub", TCP, "t", "--linger", "-0.1"], "-0.1"),
    "pub: close-timeout no number": (["pub", TCP, "t", "--close-timeout", "x"], "'x'"),
    "pub: name too long": (["pub", "tcp://127.0.0.1:0", "t", "--name", "n" * 256], "255"),
    "demo: positional": (["demo", "file"], "file"),
    "demo: missing file": (["demo", "--input", "/nonexistent/feed"], "No such file"),
    "demo: a directory": (["demo", "--input", "/"], "directory"),
    "demo: output in no directory": (["demo", "--output", "/nonexistent/bars.csv"], "no directory"),
    "demo: output is a directory": (["demo", "--output", "/"], "directory"),
    "demo: empty output": (["demo", "--output", ""], "--output"),
    "demo: no trades": (["demo", "--trades", "0"], "at least 1"),
    "demo: no time": (["demo", "--seconds", "0"], "0.1 seconds at least"),
    "demo: trades no number": (["demo", "--trades", "1e5"], "1e5"),
    "demo: input and trades": (["demo", "--trades", "5", "--input", "/dev/null"], "--trades"),
    "bench: negative size": (["bench", "--size", "-1"], "-1"),
    "bench: size too large": (["bench", "--size", "1000001"], "1000000"),
    "bench: negative seconds": (["bench", "--seconds", "-1"], "-1"),
    "bench: quick and seconds": (["bench", "--quick", "--seconds", "1"], "--quick"),
}


@pytest.mark.parametrize(("argv", "names"), WRONG.values(), ids=WRONG)
def test_wrong_arguments_get_one_line_and_status_2(argv, names, capsys):
    status = main(argv)

    printed = capsys.readouterr()
    assert status == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.endswith("\n")
    command = argv[0] if argv and argv[0] in ("sub", "pub", "demo", "bench") else None
    assert printed.err.startswith(f"p2pmsg {command}: " if command else "p2pmsg: ")
    assert names in printed.err


@pytest.mark.parametrize("command", ["demo", "pub", "sub", "bench"])
def test_help_of_each_command_has_an_example(command, capsys):
    assert main([command, "--help"]) == 0

    printed = capsys.readouterr().out
    assert f"  p2pmsg {command}" in printed or f"| p2pmsg {command}" in printed


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0

    printed = capsys.readouterr().out
    assert all(f"    {command} " in printed for command in ("demo", "pub", "sub", "bench"))


def test_version(capsys):
    assert main(["--version"]) == 0

    assert capsys.readouterr().out.startswith("p2pmsg ")


STARTS = {
    "latest": "latest",
    "earliest": "earliest",
    "0": 0,
    "20240809": 20240809,
    "2024-08-09T12:00:00Z": datetime(2024, 8, 9, 12, tzinfo=UTC),
    "2024-08-09T14:00:00.5+02:00": datetime(2024, 8, 9, 12, 0, 0, 500_000, tzinfo=UTC),
}


@pytest.mark.parametrize(("text", "value"), STARTS.items(), ids=STARTS)
def test_start_is_a_word_a_sequence_or_a_time(text, value):
    assert arguments.start(text) == value


def test_several_endpoints_are_separated_by_commas():
    assert arguments.connect_endpoints("tcp://a:1,ipc:///tmp/b") == ["tcp://a:1", "ipc:///tmp/b"]


@pytest.mark.parametrize("text", ["*", "trades", "trades.*", "ümlaut"])
def test_topics_and_prefixes(text):
    assert arguments.topic_or_prefix(text) == text


def test_a_failure_at_run_time_gets_one_line_and_status_1(capsys):
    assert main(["sub", "ipc:///tmp/nobody-publishes-here", "--timeout", "0"]) == 1

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "p2pmsg sub: no message for 0 s; 0 came\n"


def test_a_directory_that_cannot_be_bound_in_is_told_in_one_line(capsys):
    assert main(["pub", "ipc:///nonexistent/socket", "t"]) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith("p2pmsg pub: ")
    assert printed.err.count("\n") == 1


def test_the_handler_of_sigterm_is_put_back():
    before = signal.getsignal(signal.SIGTERM)

    with contextlib.suppress(SystemExit):
        main(["sub", "ipc:///tmp/nobody-publishes-here", "--timeout", "0"])

    assert signal.getsignal(signal.SIGTERM) is before
