"""`examples/deploy` parses; our command line takes its commands, and systemd its units."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from p2pmsg.cli import main

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples/deploy"
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
DOCUMENTS = {
    path: list(yaml.safe_load_all(path.read_text())) for path in sorted(DEPLOY.rglob("*.yaml"))
}
ENVIRONMENT = {"${FROM}": "tcp://prices:5556", "${LISTEN}": "tcp://*:5557"}


def commands_of(service):
    """The commands of a Compose service that go to our command line, without `p2pmsg`."""
    if "build" in service and service["build"]["dockerfile"].endswith("spark.Dockerfile"):
        return []
    if service.get("entrypoint") == ["sh", "-c"]:
        return [shlex.split(found) for found in re.findall(r"p2pmsg ([^|;]*)", *service["command"])]
    return [service["command"]]


def all_commands():
    """(where, words) of every command in the Compose file, the manifests and the units."""
    compose = DOCUMENTS[DEPLOY / "compose.yaml"][0]
    for name, service in compose["services"].items():
        yield from ((f"compose {name}", words) for words in commands_of(service))
    for path, documents in DOCUMENTS.items():
        for document in documents:
            template = document.get("spec", {}).get("template")
            for container in template["spec"]["containers"] if template else ():
                yield f"{path.name} {container['name']}", container["args"]
    for path in UNITS:
        line = re.search(r"^ExecStart=\S*p2pmsg (.*)$", path.read_text(), re.M)[1]
        yield path.name, [ENVIRONMENT.get(word, word) for word in shlex.split(line)]


COMMANDS = dict(all_commands())


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_each_command_is_one_that_our_command_line_takes(words, capsys):
    # An option that nobody knows is complained of last, when all the rest was taken.
    assert main([*words, "--no-such-option"]) == 2
    complaint = capsys.readouterr().err
    assert complaint.strip().endswith("unrecognized arguments: --no-such-option"), complaint


def test_the_compose_file_refers_to_what_is_there():
    compose = DOCUMENTS[DEPLOY / "compose.yaml"][0]
    assert len(COMMANDS) == 6
    for service in compose["services"].values():
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", [])) <= set(compose["services"])
        volumes = {volume.partition(":")[0] for volume in service.get("volumes", [])}
        assert volumes <= set(compose["volumes"])


def test_the_manifests_agree_with_themselves():
    service, stateful = DOCUMENTS[DEPLOY / "kubernetes/relay.yaml"]
    spec = stateful["spec"]
    container = spec["template"]["spec"]["containers"][0]
    labels = spec["template"]["metadata"]["labels"]

    assert spec["selector"]["matchLabels"] == labels == service["spec"]["selector"]
    assert spec["serviceName"] == service["metadata"]["name"]
    claimed = {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    assert claimed == {mount["name"] for mount in container["volumeMounts"]}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert all(any(str(port) in word for word in container["args"]) for port in ports.values())


@pytest.mark.long
def test_systemd_has_nothing_to_say_of_the_units(tmp_path):
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("systemd-analyze is not there")
    copies = [tmp_path / path.name for path in UNITS]
    for path, copy in zip(UNITS, copies, strict=True):
        # systemd wants the program to be there, which it is where it was installed.
        copy.write_text(path.read_text().replace("/usr/local/bin/p2pmsg", sys.executable))
    command = [systemd, "verify", "--man=no", *map(str, copies)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
