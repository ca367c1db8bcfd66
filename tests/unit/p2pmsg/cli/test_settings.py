"""Defaults of options by environment and file."""

import pytest

from p2pmsg.cli import main
from p2pmsg.cli.settings import parse
from p2pmsg.cli.table import load

TCP = "tcp://127.0.0.1:5556"
RELAY = '[relay]\nfrom = ["tcp://a:1", "tcp://b:1,tcp://c:1"]\nlisten = "tcp://*:1"\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parsed(folder, monkeypatch, text, variables, *words):
    (folder / "p2pmsg.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"P2PMSG_{name}", value)
    return parse(load(words[0]), words[1:])


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(folder, monkeypatch):
    text = "[sub]\njson = true\ncount = 1\ntimeout = 1.5\nstart = 2024-08-09T12:00:00Z\n[pub]\n"
    sub = parsed(folder, monkeypatch, text, {"SUB_COUNT": "2", "SUB_TIMEOUT": "2"},
                 "sub", TCP, "--timeout", "3")  # fmt: skip

    assert (sub.json, sub.count, sub.timeout) == (True, 2, 3)
    assert sub.start.year == 2024
    assert parse(load("sub"), [TCP, "--no-json"]).json is False
    monkeypatch.setenv("P2PMSG_SUB_JSON", "0")
    assert parse(load("sub"), [TCP]).json is False


def test_what_is_required_may_stand_in_the_file(folder, monkeypatch):
    relay = parsed(folder, monkeypatch, RELAY, {"RELAY_TOPICS": "a b.*"}, "relay")
    assert relay.upstreams == [["tcp://a:1"], ["tcp://b:1", "tcp://c:1"]]
    assert (relay.listen, relay.topics) == ("tcp://*:1", ["a", "b.*"])
    assert parse(load("relay"), ["--from", "tcp://d:1"]).upstreams == [["tcp://d:1"]]


ENDPOINTS = {
    "none": ([], {}, (["tcp://file:1"], [])),
    "topics alone": (["a", "b*"], {}, (["tcp://file:1"], ["a", "b*"])),
    "on the command line": (["tcp://c:1", "a"], {}, (["tcp://c:1"], ["a"])),
    "last": (["a", "--count", "1", "tcp://c:1"], {}, None),
    "a value of an option": (["--name", "tcp://c:1", "a"], {}, (["tcp://file:1"], ["a"])),
    "in the environment": (["a"], {"SUB_ENDPOINTS": "tcp://e:1,tcp://f:1"},
                           (["tcp://e:1", "tcp://f:1"], ["a"])),
}  # fmt: skip


@pytest.mark.parametrize(("words", "variables", "found"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_endpoints_may_stand_in_the_file(words, variables, found, folder, monkeypatch, capsys):
    text = '[sub]\nendpoints = "tcp://file:1"\n'
    if found is None:  # the first word is the endpoint's, as without a file
        with pytest.raises(SystemExit):
            parsed(folder, monkeypatch, text, variables, "sub", *words)
        assert "argument ENDPOINT" in capsys.readouterr().err
        return
    sub = parsed(folder, monkeypatch, text, variables, "sub", *words)
    assert (sub.endpoints, sub.topics) == found


def test_the_endpoint_of_each_kind_may_stand_in_the_file(folder, monkeypatch):
    text = '[pull]\nendpoints = ["tcp://a:1", "tcp://b:1"]\n[pub]\nendpoint = "tcp://*:1"\n'
    assert parsed(folder, monkeypatch, text, {}, "pull").endpoints == ["tcp://a:1", "tcp://b:1"]
    pub = parse(load("pub"), ["greetings"])
    assert (pub.endpoint, pub.topic) == ("tcp://*:1", "greetings")
    (folder / "p2pmsg.toml").write_text('[log.replay]\nendpoint = "tcp://*:1"\n')
    replay = parse(load("log"), ["replay", ".", "a"])
    assert (replay.directory, replay.endpoint, replay.topics) == (".", "tcp://*:1", ["a"])


def test_of_options_that_exclude_one_another_the_nearer_one_holds(folder, monkeypatch):
    words = ["capacity", "--rate", "5", "--size", "1"]
    text = '[capacity]\ndisk = "1GB"\n'
    assert parsed(folder, monkeypatch, text, {}, *words).disk == 10**9
    for given in (words[1:], [*words[1:], "--window", "3h"]):
        capacity = parse(load("capacity"), given)
        assert (capacity.disk is None) == ("--window" in given)


def test_a_flag_that_is_off_excludes_no_other_option(folder, monkeypatch):
    text = "[sub]\njson = false\nformat = '{key}'\n"
    assert parsed(folder, monkeypatch, text, {}, "sub", TCP).format == "{key}"
    assert parse(load("sub"), [TCP, "--no-json"]).format == "{key}"
    monkeypatch.setenv("P2PMSG_SUB_TIMESTAMPS", "0")
    assert parse(load("sub"), [TCP]).format == "{key}"
    monkeypatch.setenv("P2PMSG_SUB_JSON", "1")
    assert (parse(load("sub"), [TCP]).format, parse(load("sub"), [TCP]).json) == (None, True)


def test_commands_of_a_group_have_sections_of_their_own(folder, monkeypatch):
    text = "[log.ls]\njson = true\n"
    assert parsed(folder, monkeypatch, text, {"LOG_LS_DISK": "1kB"}, "log", "ls", ".").json
    assert parse(load("log"), ["ls", "."]).disk == 1000


def test_another_file_may_be_named_and_none(folder, monkeypatch):
    (folder / "other.toml").write_text("[sub]\ncount = 7\n")
    text = "[sub]\ncount = 1\n"
    words = ("sub", TCP)
    assert parsed(folder, monkeypatch, text, {"CONFIG": "other.toml"}, *words).count == 7
    assert parsed(folder, monkeypatch, text, {"CONFIG": ""}, *words).count is None


def test_what_kubernetes_sets_for_a_service_is_no_setting(folder, monkeypatch):
    for name in ("SERVICE_HOST", "SERVICE_PORT_DATA", "PORT", "PORT_5557_TCP_ADDR"):
        for service in ("RELAY", "RELAY_EU", "LOG", "LOG_0"):
            monkeypatch.setenv(f"P2PMSG_{service}_{name}", "tcp://10.0.0.1:5557")
    assert parsed(folder, monkeypatch, RELAY, {}, "relay").log is None
    assert parse(load("log"), ["ls", "."]).directory == "."


REFUSED = {
    "not TOML": ("[sub]\ncount =\n", {}, "p2pmsg.toml: Invalid value (at line 2"),
    "unknown section": ("[sub]\n[sbu]\n", {}, "p2pmsg.toml: there is no command 'sbu'; did"),
    "no section": ("json = true\n", {}, "there is no command 'json'"),
    "no table": ("sub = true\n", {}, "p2pmsg.toml, [sub]: must be a section with options"),
    "unknown option": ("[pub]\n\n[sub]\njsn = 1\n", {}, ".toml, [sub]: there is no option 'jsn'"),
    "value": ("[pub]\ncount=1\n[sub]\ncount = 0\n", {}, "[sub]: count: must be at least 1"),
    "no flag": ("[sub]\njson = 1\n", {}, "[sub]: json: must be true or false, not 1"),
    "list": ("[sub]\ncount = [1]\n", {}, "count: must be a value as on the command line"),
    "flag as a value": ("[sub]\ncount = true\n", {}, "count: must be a value"),
    "both": ("[sub]\njson = true\nformat = ''\n", {}, "defaults of --json and --format exclude"),
    "no such file": ("", {"CONFIG": "x.toml"}, "cannot read 'x.toml': No such file"),
    "variable": ("", {"SUB_COUNT": "x"}, "P2PMSG_SUB_COUNT: must be a whole number, not 'x'"),
    "unknown variable": ("", {"SUB_JSN": "1"}, "P2PMSG_SUB_JSN: sub has no such option"),
    "variable no flag": ("", {"SUB_JSON": "ja"}, "P2PMSG_SUB_JSON: must be true or false"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "variables", "names"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_named_by_file_and_section_or_variable(
    text, variables, names, folder, monkeypatch, capsys
):
    (folder / "p2pmsg.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"P2PMSG_{name}", value)
    assert main(["sub", TCP]) == 2
    said = capsys.readouterr().err
    assert said.startswith("p2pmsg sub: ")
    assert said.count("\n") == 1
    assert names in said
    assert main(["sub", "--help"]) == main(["help", "sub"]) == 0


OF_GROUPS = {
    "option of none": ("[log]\nfoo = true\n", {}, "p2pmsg.toml, [log]: there is no command 'foo'"),
    "option of a command": ("[log]\n\ncount = 1\n", {}, "command 'count'; there are ls, dump"),
    "unknown command": ("[log.ls]\n[log.dmp]\n", {}, "[log]: there is no command 'dmp'; did"),
    "no table": ("[log]\ndump = 1\n", {}, "[log.dump]: must be a section with options"),
    "its option": ("[log]\ndump.cnt = 1\n", {}, "[log.dump]: there is no option 'cnt'"),
    "its variable": ("", {"LOG_DUMP_CNT": "1"}, "P2PMSG_LOG_DUMP_CNT: log dump has no such option"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "variables", "names"), OF_GROUPS.values(), ids=OF_GROUPS)
def test_what_is_wrong_of_a_group_is_named(text, variables, names, folder, monkeypatch, capsys):
    (folder / "p2pmsg.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"P2PMSG_{name}", value)
    assert main(["log", "dump", "."]) == 2
    said = capsys.readouterr().err
    assert said.startswith("p2pmsg log dump: ")
    assert said.count("\n") == 1
    assert names in said
    assert main(["log", "dump", "--help"]) == main(["help", "log", "dump"]) == 0


@pytest.mark.parametrize("group", ["log", "hook", "key", "trust", "access"])
def test_each_command_of_a_group_looks_at_its_settings(group, folder, monkeypatch, capsys):
    for each in load(group).commands:
        (folder / "p2pmsg.toml").write_text(f"[{'.'.join(each.name.split())}]\nfoo = 1\n")
        assert main([*each.name.split()]) == 2
        assert "there is no option 'foo'" in capsys.readouterr().err
