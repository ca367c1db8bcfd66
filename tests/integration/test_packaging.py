"""The sdist makes a wheel that has everything; installed, it runs README's quickstart."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.endpoints import lasting_endpoint

ROOT = Path(__file__).parents[2]
PACKAGES = ("p2pmsg", "transports", "recovery", "spark_bridge")
INSTALLED = os.environ.get("P2PMSG_PYTHONS", "").split()


def build(folder, target, output, **environment):
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(output)]
    settings = os.environ | {"P2PMSG_NATIVE": "0"} | environment
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300, env=settings)
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
        if path.is_file() and path.suffix != ".so" and "__pycache__" not in path.parts
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


def test_a_wheel_is_of_python_where_nothing_compiles_and_refused_where_it_has_to(tmp_path):
    wheel = build(ROOT, "wheel", tmp_path / "any", P2PMSG_NATIVE="", CC="/bin/false")
    assert wheel.name.endswith("-none-any.whl")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        build(ROOT, "wheel", tmp_path / "none", P2PMSG_NATIVE="1", CC="/bin/false")
    assert b"RuntimeError: " in refused.value.stderr + refused.value.stdout


@pytest.mark.long
def test_a_compiled_wheel_runs_compiled(tmp_path):
    pytest.importorskip("Cython")
    if not shutil.which("gcc"):
        pytest.skip("there is no gcc")
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path, P2PMSG_NATIVE="1", CC="gcc")) as wheel:
        wheel.extractall(tmp_path / "installed")
    (module,) = (tmp_path / "installed/p2pmsg/native").glob("compiled.*.so")
    assert module.stat().st_size < 1_000_000
    for wanted, name in (("1", "compiled"), ("0", "python")):
        code = "from p2pmsg import native; print(native.NAME)"
        settings = {"PYTHONPATH": str(tmp_path / "installed"), "P2PMSG_NATIVE": wanted}
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | settings,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert found.stdout.strip() == name


def test_a_wheel_has_the_demo(tmp_path):
    with zipfile.ZipFile(build(ROOT, "wheel", tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
    words = ["demo", "--no-spark", "--trades", "2000", "--seconds", "0.5", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "p2pmsg", *words], cwd=tmp_path / "installed", timeout=100,
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed"), "P2PMSG_NATIVE": "0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["published"] == 2000


@pytest.mark.skipif(not INSTALLED, reason="`make test-pythons` installs the wheel and names them")
def test_an_installed_wheel_runs_the_quickstart(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", readme, re.S)
    output = re.search(r"```text\n(.*?)lost=0", readme, re.S)[1]
    assert [name for name, _ in programs] == ["publisher", "subscriber"]
    for python in INSTALLED:
        endpoint = lasting_endpoint()
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
