"""Defaults of options by environment and file."""

import pytest

from p2pmsg.cli import main
from p2pmsg.cli.settings import parse
from p2pmsg.cli.table import load, split

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
    name, rest = split(words)
    return parse(load(name), rest)


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(folder, monkeypatch):
    text = "[sub]\njson = true\ncount = 1\ntimeout = 1.5\nstart = 2024-08-09T12:00:00Z\n[pub]\n"
    sub = parsed(folder, monkeypatch, text, {"SUB_COUNT": "2", "SUB_TIMEOUT": "2"},
                 "sub", TCP, "--timeout", "3")  # fmt: skip

    assert (sub.json, sub.count, sub.timeout) == (True, 2, 3)
    assert sub.start.year == 2024
    monkeypatch.setenv("P2PMSG_SUB_JSON", "0")
    assert parse(load("sub"), [TCP]).json is False


def test_what_is_required_may_stand_in_the_file(folder, monkeypatch):
    relay = parsed(folder, monkeypatch, RELAY, {"RELAY_TOPICS": "a b.*"}, "relay")
    assert relay.upstreams == ["tcp://a:1", "tcp://b:1", "tcp://c:1"]
    assert (relay.listen, relay.topics) == ("tcp://*:1", ["a", "b.*"])
    assert parse(load("relay"), ["--from", "tcp://d:1"]).upstreams == ["tcp://d:1"]


def test_of_options_that_exclude_one_another_the_one_that_is_given_holds(folder, monkeypatch):
    text = '[pub]\nkey = "k"\n'
    assert parsed(folder, monkeypatch, text, {}, "pub", "tcp://a:1", "t").key == "k"
    assert parse(load("pub"), ["tcp://a:1", "t", "--key-field", "f"]).key is None


def test_commands_of_a_group_have_sections_of_their_own(folder, monkeypatch):
    text = '[log.truncate]\nkeep = "1MB"\n'
    variables = {"LOG_TRUNCATE_KEEP": "1kB"}
    assert parsed(folder, monkeypatch, text, {}, "log", "truncate", ".").keep == "1MB"
    assert parsed(folder, monkeypatch, text, variables, "log", "truncate", ".").keep == "1kB"


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
    assert parse(load("log ls"), ["."]).directory == "."


REFUSED = {
    "not TOML": ("[sub]\ncount =\n", {}, "p2pmsg.toml: Invalid value (at line 2"),
    "unknown section": ("[sub]\n[sbu]\n", {}, "p2pmsg.toml: there is no command 'sbu'; did"),
    "no section": ("json = true\n", {}, "there is no command 'json'"),
    "no table": ("sub = true\n", {}, "p2pmsg.toml, [sub]: must be a section with options"),
    "unknown option": ("[pub]\n\n[sub]\njsn = 1\n", {}, ".toml, [sub]: there is no option 'jsn'"),
    "value": ("[pub]\ncount=1\n[sub]\ncount = 0\n", {}, "--count: must be from 1 to"),
    "no flag": ("[sub]\njson = 2\n", {}, "[sub]: json: must be true or false, not 2"),
    "flag as a value": ("[sub]\ncount = true\n", {}, "count: must be a value"),
    "no such file": ("", {"CONFIG": "x.toml"}, "cannot read 'x.toml': No such file"),
    "variable": ("", {"SUB_COUNT": "x"}, "--count: must be a whole number, not 'x'"),
    "unknown variable": ("", {"SUB_JSN": "1"}, "P2PMSG_SUB_JSN: sub has no such option"),
    "variable no flag": ("", {"SUB_JSON": "ja"}, "P2PMSG_SUB_JSON: must be true or false"),
}  # fmt: skip
REFUSED_OF_A_GROUP = {
    "option of none": ("[log]\nfoo = true\n", {}, "p2pmsg.toml: there is no command 'log foo'"),
    "group: no table": ("[log]\ndump = 1\n", {}, "[log dump]: must be a section with options"),
    "its option": ("[log]\ndump.cnt = 1\n", {}, "[log.dump]: there is no option 'cnt'"),
    "its variable": ("", {"LOG_DUMP_CNT": "1"}, "P2PMSG_LOG_DUMP_CNT: log dump has no such option"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "text", "variables", "names"),
    [
        *((("sub", TCP), *each) for each in REFUSED.values()),
        *((("log", "dump", "."), *each) for each in REFUSED_OF_A_GROUP.values()),
    ],
    ids=[*REFUSED, *REFUSED_OF_A_GROUP],
)
def test_what_is_wrong_is_named_by_file_and_section_or_variable(
    words, text, variables, names, folder, monkeypatch, capsys
):
    (folder / "p2pmsg.toml").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(f"P2PMSG_{name}", value)
    assert main([*words]) == 2
    said = capsys.readouterr().err
    command = words[:-1]
    assert said.startswith(f"p2pmsg {' '.join(command)}: ")
    assert said.count("\n") == 1
    assert names in said
    assert main([*command, "--help"]) == 0
