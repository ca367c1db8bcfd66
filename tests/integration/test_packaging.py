"""The sdist makes a wheel that has everything; installed, it runs README's quickstart."""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.places import lasting_place

ROOT = Path(__file__).parents[2]
PACKAGES = ("p2pmsg", "transports", "recovery", "spark_bridge")
INSTALLED = os.environ.get("P2PMSG_PYTHONS", "").split()


def build(folder, target, output):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(output)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    (made,) = output.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


@pytest.mark.long
def test_the_sdist_makes_the_wheel_of_this_tree(tmp_path):
    with tarfile.open(build(ROOT, "sdist", tmp_path)) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (source,) = (path for path in tmp_path.iterdir() if path.is_dir())
    with zipfile.ZipFile(build(source, "wheel", tmp_path)) as wheel:
        content = {name: wheel.read(name) for name in wheel.namelist()}

    wanted = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {
        f"p2pmsg/demo/{path.name}": path.read_bytes() for path in ROOT.glob("examples/demo/*.py")
    }
    wanted["pyspark_p2pmsg/__init__.py"] = wanted.pop("spark_bridge/discovery.py")
    assert {name: data for name, data in content.items() if ".dist-info/" not in name} == wanted
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wanted)
    about = {name.partition("/")[2]: data for name, data in content.items() if name not in wanted}
    assert about["licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert b"p2pmsg = p2pmsg.cli:main" in about["entry_points.txt"]
    assert b"[pytest11]\np2pmsg = p2pmsg.pytest_plugin" in about["entry_points.txt"]
    assert {"tests", "examples", "LICENSE", "CHANGELOG.md"} <= {p.name for p in source.iterdir()}


def test_a_wheel_has_the_demo(tmp_path):
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
    words = ["demo", "--no-spark", "--trades", "2000", "--seconds", "0.5", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "p2pmsg", *words], cwd=tmp_path / "installed", timeout=100,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["published"] == 2000


def test_nothing_of_a_release_is_promised_before_there_is_one():
    registry = re.compile(r"pypi\.\w{2,3}\b|npmjs\.\w{2,3}\b|pythonhosted\.")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.splitlines()]
    if not files:
        pytest.skip("no clone: git lists no files")
    texts = {each: each.read_bytes().decode(errors="replace") for each in files if each.is_file()}
    assert [str(each) for each, text in texts.items() if registry.search(text)] == []
    assert "pip install p2pmsg" not in texts[ROOT / "README.md"] + texts[ROOT / "docs/index.md"]


@pytest.mark.parametrize(("python", "has_zfec"), [("3.13", True), ("3.14", False)])
def test_all_leaves_out_what_has_no_wheel(python, has_zfec):
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    env = {"python_version": python, "platform_python_implementation": "CPython"}
    for name, wanted in (("zfec", has_zfec), ("msgspec", True)):
        listed = [*about["dependencies"], *about["optional-dependencies"]["fec"]]
        (found,) = (each for each in map(Requirement, listed) if each.name == name)
        assert (found.marker is None or found.marker.evaluate(env)) == wanted
    assert f"Programming Language :: Python :: {python}" in about["classifiers"]


def test_an_extra_can_be_added_to_what_is_installed():
    """As the README, and errors about what is missing, say; p2pmsg itself is in no index."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "p2pmsg[statsd]"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(not INSTALLED, reason="`make test-pythons` installs the wheel and names them")
def test_an_installed_wheel_runs_the_quickstart(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", readme, re.S)
    output = re.search(r"```text\n(.*?)lost=0", readme, re.S)[1]
    assert [name for name, _ in programs] == ["publisher", "subscriber"]
    for python in INSTALLED:
        endpoint = lasting_place()
        started = {}
        for name, text in programs:
            # -I: neither this folder nor PYTHONPATH; what is imported was installed.
            code = text.replace("tcp://127.0.0.1:5556", endpoint)
            started[name] = subprocess.Popen(
                [python, "-I", "-c", code + "print(p2pmsg.__file__)"],
                cwd=tmp_path, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        said = {name: child.communicate(timeout=60)[0] for name, child in started.items()}
        assert said["subscriber"].startswith(output), said
        assert all("site-packages" in text.splitlines()[-1] for text in said.values()), said
        assert [child.returncode for child in started.values()] == [0, 0]
