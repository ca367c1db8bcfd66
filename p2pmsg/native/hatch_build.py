"""Compiles `p2pmsg/native/compiled.pyx` where a C compiler is; elsewhere the package is Python.

`P2PMSG_NATIVE=0` in the environment: it is not compiled; `=1`: it is an error if it cannot be.
"""

import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "p2pmsg/native/compiled"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SECONDS_MAX = 300


def run(*command: str) -> None:
    """Run a program; `RuntimeError` with the last line that it wrote where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(str(error)) from error
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line]
        why = lines[0].strip() if lines else f"exit status {done.returncode}"
        raise RuntimeError(f"{command[0]}: {why}")


def build(source: Path, made: Path, *options: str) -> None:
    """Compile a module of Cython; `RuntimeError` where that cannot be done.

    Args:
        source: the .pyx file.
        made: where the module is to be.
        options: more options of the C compiler.

    """
    try:
        from Cython.Compiler.Main import compile_single
        from Cython.Compiler.Options import CompilationOptions
    except ImportError as error:
        raise RuntimeError(f"no Cython: {error}") from error
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        raise RuntimeError(f"no C compiler: {compiler[0]}")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").exists():
        raise RuntimeError(f"no Python.h in {include}")
    with tempfile.TemporaryDirectory() as folder:
        code, module = str(Path(folder, "compiled.c")), str(Path(folder, "compiled.so"))
        made_code = compile_single(
            str(source), CompilationOptions(output_file=code), NAME.replace("/", ".")
        )
        if made_code.num_errors:
            raise RuntimeError(f"Cython: {made_code.num_errors} errors")
        stamp = f"-DP2PMSG_SOURCE={zlib.crc32(source.read_bytes())}UL"
        flags = ["-O2", "-fPIC", "-shared", "-fno-strict-aliasing", "-fwrapv", "-w", stamp]
        flags += [*shlex.split(os.environ.get("CFLAGS", "")), *options]
        run(*compiler, *flags, f"-I{include}", code, "-o", module)
        made.parent.mkdir(exist_ok=True)
        shutil.copyfile(module, made)


def key_of(source: Path) -> int:
    """Return a number for what a module is made of: the source, and how it is compiled."""
    how = (os.environ.get("CC"), os.environ.get("CFLAGS"), Path(__file__).read_text())
    return zlib.crc32(repr(how).encode(), zlib.crc32(source.read_bytes()))


class NativeBuildHook(BuildHookInterface):
    """Adds the compiled module to a wheel, or puts it next to its source for `pip install -e`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or say why not; `RuntimeError` where it must be compiled and cannot be."""
        wanted = os.environ.get("P2PMSG_NATIVE", "")
        if wanted not in ("", "0", "1"):
            raise RuntimeError(f"P2PMSG_NATIVE must be 0 or 1, not {wanted!r}")
        source = Path(self.root, NAME + ".pyx")
        at = source.with_name("compiled" + SUFFIX)
        if version == "editable":
            at.unlink(missing_ok=True)
        if wanted == "0":
            return
        # pip builds a package twice, and the first time for its metadata alone.
        made = Path(self.root, "build", f"native-{key_of(source):08x}{SUFFIX}")
        try:
            if not made.exists():
                build(source, made)
        except (RuntimeError, OSError) as error:
            if wanted == "1":
                raise
            self.app.display_warning(
                f"p2pmsg goes on in Python, its native part is not built: {error}"
            )
            return
        build_data["pure_python"], build_data["infer_tag"] = False, True
        if version == "editable":
            shutil.copyfile(made, at)
        else:
            build_data["force_include"][str(made)] = NAME + SUFFIX
