"""Sphinx builds the guide: `make docs`.

The reference, the commands and the packages' READMEs are made here, in folders that git ignores,
before Sphinx reads them.
"""

import contextlib
import importlib
import inspect
import io
import re
import shutil
from functools import partial
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.ext import napoleon
from sphinx.util import logging

from p2pmsg.cli import main
from p2pmsg.cli.table import COMMANDS

project = "p2pmsg"
version = release = metadata.version("p2pmsg")
html_title = f"p2pmsg {version}"
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
html_show_sourcelink = False
logger = logging.getLogger(__name__)
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["myst.header", "misc.highlighting_failure", "ref.python"]
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_class_signature = "mixed"
# Up to those classes that are not ours.
FOREIGN = "BaseException, OSError, ImportError, AttributeError, Sequence, str, tuple, object"
autodoc_default_options = {"members": True, "inherited-members": FOREIGN}
napoleon_use_ivar = True
python_maximum_signature_line_length = 88

_process_docstring = napoleon._process_docstring


def _process_all_but_fields(app: Any, what: str, *arguments: Any) -> None:
    """Leave the docstrings of fields and properties: what is before a colon would become a type."""
    if what not in ("attribute", "property"):
        _process_docstring(app, what, *arguments)


napoleon._process_docstring = _process_all_but_fields


def _shorten_types(_: Any, doctree: nodes.document) -> None:
    """Show `~collections.abc.Callable` as `Callable` where Sphinx has nothing to link to."""
    for text in list(doctree.findall(nodes.Text)):
        if "~" in text:
            text.parent.replace(text, nodes.Text(LONG_NAME.sub(r"\1", text)))


def setup(app: Any) -> None:
    """Register what Sphinx has to call."""
    app.connect("doctree-read", _shorten_types)
    app.connect("env-check-consistency", _check_members)


def _check_members(_: Any, env: Any) -> None:
    """Warn of public methods of public classes that are in no page, which fails `make docs`."""
    shown = set(env.get_domain("py").objects)
    for value, page in PAGE_OF.items():
        for name, member in inspect.getmembers(value) if inspect.isclass(value) else ():
            is_ours = str(getattr(member, "__module__", "")).partition(".")[0] in PACKAGES
            if is_ours and name[0] != "_" and f"{page}.{name}" not in shown:
                logger.warning("%s.%s is in no page of the reference", page, name)


PAGES = Path(__file__).parent
ROOT = PAGES.parent
MODULES = (
    "p2pmsg", "p2pmsg.aio", "p2pmsg.aio.metrics", "p2pmsg.aio.reader", "p2pmsg.config",
    "p2pmsg.errors", "p2pmsg.message", "p2pmsg.frames", "p2pmsg.stats", "p2pmsg.listener",
    "p2pmsg.log", "p2pmsg.reader", "p2pmsg.queue", "p2pmsg.requests", "p2pmsg.relay",
    "p2pmsg.moldudp64", "p2pmsg.metrics", "p2pmsg.statsd", "p2pmsg.testing", "p2pmsg.app",
    "p2pmsg.bridge", "p2pmsg.webhooks", "p2pmsg.http", "p2pmsg.plain", "p2pmsg.store",
    "p2pmsg.toolkit", "p2pmsg.native", "spark_bridge",
)  # fmt: skip
PACKAGES = ("p2pmsg", "transports", "recovery", "spark_bridge")
PAGE_OF: dict[object, str] = {}
LONG_NAME = re.compile(r"~(?:\w+\.)+(\w+)")
LINK = re.compile(r"\[([^]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")


def write(path: str, lines: list[str]) -> None:
    """Write a page."""
    page = PAGES / path
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join([*lines, ""]))


def toc(names: list[str]) -> list[str]:
    """Return the list of a folder's pages, for the guide's navigation; nothing is shown."""
    return ["", "```{toctree}", ":hidden:", "", *names, "```"]


def write_reference() -> None:
    """Write a page for each public class and function, and the list of them."""
    index = ["# Reference", ""]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        index += [f"## {module_name}", "", summary(module), "", "| name | what it is |"]
        index.append("| --- | --- |")
        for name in sorted(names_of(module)):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                page = PAGE_OF.setdefault(value, f"{module_name}.{name}")
                index.append(f"| [{name}]({page}.md) | {summary(value)} |")
                write(f"reference/{page}.md", [f"# {name}", "", *reference(value, page)])
        index.append("")
    write("reference/index.md", index + toc(list(PAGE_OF.values())))


def names_of(module: ModuleType) -> list[str]:
    """Return a module's public names: those that it lists, or else the classes that it defines."""
    return getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def reference(value: object, name: str) -> list[str]:
    """Return the directive that shows a class or a function."""
    kind = "class" if inspect.isclass(value) else "function"
    is_error = inspect.isclass(value) and issubclass(value, Exception)
    bases = ["   :show-inheritance:"] if is_error else []
    return ["```{eval-rst}", f".. auto{kind}:: {name}", *bases, "```"]


def summary(value: object) -> str:
    """Return the first paragraph of a docstring as one line of a table."""
    first = (inspect.getdoc(value) or "").split("\n\n")[0]
    return " ".join(first.split()).replace("|", "\\|")


def write_commands() -> None:
    """Write what `--help` says, command by command."""
    text = ["# Command line", ""]
    for command in ("", *COMMANDS):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            main([*command.split(), "--help"])
        text += [f"## p2pmsg {command}".rstrip(), "", "```text", output.getvalue(), "```", ""]
    write("commands/index.md", text)


def write_inside() -> None:
    """Copy the packages' READMEs, with links between the guide's pages."""
    index, pages = ["# How it works", ""], []
    for path in sorted(path for name in PACKAGES for path in (ROOT / name).rglob("README.md")):
        page = inside_page(path)
        write(f"inside/{page}", LINK.sub(partial(relink, path), path.read_text()).splitlines())
        pages.append(page.removesuffix(".md"))
        index.append(f"- [{pages[-1]}]({page})")
    write("inside/index.md", index + toc(pages))


def inside_page(readme: Path) -> str:
    """Return the name of the page for a package's README."""
    return f"{'.'.join(readme.parent.relative_to(ROOT).parts)}.md"


def relink(readme: Path, link: re.Match[str]) -> str:
    """Return a link of a README as a link of the guide, or as text where it leads to a file."""
    target = (readme.parent / link[2]).resolve()
    if PAGES in target.parents:
        return f"[{link[1]}](../{target.relative_to(PAGES)}{link[3] or ''})"
    is_page = (
        target.name == "README.md"
        and target.exists()
        and target.relative_to(ROOT).parts[0] in PACKAGES
    )
    return f"[{link[1]}]({inside_page(target)}{link[3] or ''})" if is_page else link[1]


for folder in ("reference", "commands", "inside"):
    shutil.rmtree(PAGES / folder, ignore_errors=True)
write_reference()
write_commands()
write_inside()
