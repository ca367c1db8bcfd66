"""Who may touch what: engines own their state, callbacks come by constructors, and nothing is used
that others keep private. docs/design/driver.md has the law.

What still offends is listed; the lists only get shorter, and the aim is that they are empty.
"""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("p2pmsg", "transports", "recovery", "spark_bridge")
OUTSIDE = ("peers", "driver", "aio")
"""Packages of p2pmsg that have no engine of their own, and use those of others."""
ENGINES = {"engine", "core"}
"""What engines are called where they are used, with or without an underscore in front."""
DOCUMENTED = {"_replace", "_asdict", "_make", "_fields", "_field_defaults", "_exit"}
"""Of named tuples and of `os`; they have the underscore for another reason."""
OF_LIBRARIES = {"_jsparkSession", "_negative_store"}
"""Of pyspark and ddsketch, which have no other way."""
NEVER = {"_asyncio_future_blocking", "_is_owned", "_release_save", "_acquire_restore"}
"""What the standard library looks for by these names, so that it does not help to define them."""
ENGINE_WRITES: set[str] = set()
CALLBACKS_SET: set[str] = set()
INTERPRETERS = {"sys.unraisablehook"}
"""Hooks that the interpreter has for functions."""
PRIVATE_NAMES: set[str] = set()
FACES = ("p2pmsg/peers", "p2pmsg/metrics", "p2pmsg/statsd")
"""Where the faces and their bases are: the classes that have a `_peer`."""
REACHES = {
    "self._peer.batch.buffer", "self._peer.batch.bytes_max", "self._peer.batch.ends",
    "self._peer.batch.next", "self._peer.batch.repair", "self._peer.batch.stop",
    "self._peer.changes.append", "self._peer.changes.remove",
    "self._peer.open_batches.batch", "self._peer.open_batches.batch.end",
    "self._peer.open_batches.batch.next", "self._peer.open_batches.get",
    "self._peer.open_batches.topic",
    "self._peer.reading.messages", "self._peer.reading.reports",
}  # fmt: skip
"""What faces do themselves, since a call would be a sixth of the time: `push` and `publish` write
to an open batch, a client's counter appends its change, and a message, or a report, is taken by C
alone."""


SATELLITES = ("app", "bridge", "cli", "http", "metrics", "statsd", "testing", "webhooks")
"""Packages over the kernel: they import what users can, and one another by public names."""
PUBLIC = {
    "p2pmsg", "p2pmsg.aio", "p2pmsg.aio.metrics", "p2pmsg.aio.reader", "p2pmsg.codec",
    "p2pmsg.config", "p2pmsg.errors", "p2pmsg.frames", "p2pmsg.listener", "p2pmsg.log",
    "p2pmsg.message", "p2pmsg.moldudp64", "p2pmsg.native", "p2pmsg.plain", "p2pmsg.queue",
    "p2pmsg.reader", "p2pmsg.relay", "p2pmsg.requests", "p2pmsg.security", "p2pmsg.stats",
    "p2pmsg.store", "p2pmsg.toolkit",
    *(f"p2pmsg.{each}" for each in SATELLITES),
    "p2pmsg.http.asgi", "p2pmsg.http.publishing",
}  # fmt: skip
"""What the docstring of p2pmsg and README.md of http name."""
PRIVATE_IMPORTS: dict[str, set[str]] = {
    # A network in memory is another machine: its clock, its disks and its sockets.
    "p2pmsg.testing": {
        "p2pmsg.driver.virtual",
        "p2pmsg.peers.network",
        "recovery.log",
        "recovery.memory_store",
        "transports.memory",
    },
}


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*packages):
    for package in packages:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield str(path.relative_to(ROOT).with_suffix("")).replace("/", "."), tree_of(path)


def targets_of(node):
    """Return what a statement assigns to, tuples taken apart."""
    if isinstance(node, ast.Assign):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        found = [node.target]
    elif isinstance(node, ast.Delete):
        found = list(node.targets)
    else:
        return []
    flat = []
    while found:
        one = found.pop()
        if isinstance(one, ast.Tuple | ast.List):
            found += one.elts
        else:
            flat.append(one)
    return flat


def is_of_engine(target):
    """Whether it is an attribute, or an item of one, of what is called an engine."""
    node = target.value if isinstance(target, ast.Subscript) else target
    if not isinstance(node, ast.Attribute):
        return False
    node = node.value
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        if isinstance(node, ast.Attribute) and node.attr.lstrip("_") in ENGINES:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    return isinstance(node, ast.Name) and node.id.lstrip("_") in ENGINES


def engine_writes():
    """Return what of an engine's state is written from outside."""
    return {
        ast.unparse(target): name
        for name, tree in modules(*(f"p2pmsg/{package}" for package in OUTSIDE))
        for node in ast.walk(tree)
        for target in targets_of(node)
        if is_of_engine(target)
    }


def callbacks_set():
    """Return which attributes of another object a function is put into."""
    found = {}
    for name, tree in modules(*PACKAGES):
        methods, functions = functions_of(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not is_function(node.value, methods, functions):
                continue
            for target in targets_of(node):
                if isinstance(target, ast.Attribute) and not is_own(target):
                    found[ast.unparse(target)] = name
    return {what: where for what, where in found.items() if what not in INTERPRETERS}


def functions_of(tree):
    """Return the names of the methods of a module, and of its other functions."""
    methods, functions = set(), set()
    for node in ast.walk(tree):
        for one in ast.iter_child_nodes(node):
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                if not isinstance(node, ast.ClassDef):
                    functions.add(one.name)
                elif not any("property" in ast.unparse(by) for by in one.decorator_list):
                    methods.add(one.name)
    return methods, functions


def is_function(value, methods, functions):
    """Whether it is a lambda, a partial, a function of this module, or a method of `self`."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) in ("partial", "functools.partial")
    if isinstance(value, ast.Name):
        return value.id in functions
    is_self = isinstance(value, ast.Attribute) and ast.unparse(value.value) == "self"
    return is_self and value.attr in methods


def is_own(target):
    """Whether it is an attribute of `self`, of a class, or a special method of one just made."""
    is_self = isinstance(target.value, ast.Name) and target.value.id in ("self", "cls")
    return is_self or target.attr.startswith("__")


@cache
def own_names():
    """Return all names with an underscore in front that our packages define."""
    found = DOCUMENTED | OF_LIBRARIES
    for _, tree in modules(*PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
            elif isinstance(node, ast.arg):
                found.add(node.arg)
            elif isinstance(node, ast.alias):
                found.add(node.asname or node.name)
    return found - NEVER


def faces():
    """Return the classes of faces and of their bases, each with its module."""
    for name, tree in modules(*FACES):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "self._peer" in ast.unparse(node):
                yield name, node


def assigned(tree):
    """Return what is assigned in a tree, value by value, as pairs of target and value."""
    for node in ast.walk(tree):
        for target in getattr(node, "targets", ()) if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def chain_of(node, known):
    """Return names with dots in between as a text, what stands for others replaced; else ""."""
    if isinstance(node, ast.Name):
        text = node.id
    elif isinstance(node, ast.Attribute) and (before := chain_of(node.value, known)):
        text = f"{before}.{node.attr}"
    else:
        return ""
    return known.get(text, text)


def aliases(tree, known):
    """Return what else stands for a peer, or for what it has: names, and attributes of faces."""
    found = dict(known)
    for target, value in assigned(tree):
        for each in [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]:
            chain = chain_of(each, found)
            if chain.startswith("self._peer") and isinstance(target, ast.Name | ast.Attribute):
                found[ast.unparse(target)] = chain
    return found


def reaches():
    """Return what faces use of what their peers have, or set of a peer."""
    found, known = {}, {}
    for _, face in faces():
        known |= {
            name: chain
            for method in face.body
            for name, chain in aliases(method, {}).items()
            if name.startswith("self.")
        }
    for name, face in faces():
        for method in face.body:
            names = aliases(method, known)
            for node in ast.walk(method):
                chain = chain_of(node, names) if isinstance(node, ast.Attribute) else ""
                if not chain.startswith("self._peer."):
                    continue
                is_set = isinstance(node.ctx, ast.Store) and ast.unparse(node) not in known
                if is_set or chain.count(".") == 3:
                    found[chain] = name
    return found


def private_names():
    """Return which private names of others are used, or defined for them."""
    found = {}
    for name, tree in modules(*PACKAGES):
        imported = {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name.partition(".")[0] not in PACKAGES
        }
        for node in ast.walk(tree):
            found |= dict.fromkeys(names_of(node, imported), name)
    return found


def names_of(node, imported):
    if isinstance(node, ast.Attribute) and is_private(node.attr):
        is_module = isinstance(node.value, ast.Name) and node.value.id in imported
        is_module = is_module and node.attr not in DOCUMENTED
        if is_module or node.attr not in own_names():
            yield node.attr
    elif isinstance(node, ast.Name) and node.id in NEVER:
        yield node.id
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        origin = node.module or ""
        if origin.partition(".")[0] not in PACKAGES:
            yield from (part for part in origin.split(".") if is_private(part))
            yield from (alias.name for alias in node.names if is_private(alias.name))
    elif isinstance(node, ast.Import):
        yield from (a.name for a in node.names if any(map(is_private, a.name.split("."))))
    elif isinstance(node, ast.Call) and node.args:
        called, first = ast.unparse(node.func).rpartition(".")[2], node.args[0]
        if called in ("import_module", "__import__") and isinstance(first, ast.Constant):
            yield from (part for part in str(first.value).split(".") if is_private(part))
        second = node.args[1] if len(node.args) > 1 else None
        is_by_name = called in ("getattr", "setattr", "hasattr")
        if is_by_name and isinstance(second, ast.Constant) and is_private(str(second.value)):
            yield from {str(second.value)} - own_names()


def private_imports():
    """Return what each satellite, the demo and spark_bridge import that users cannot."""
    found = {}
    roots = {**{f"p2pmsg/{each}": f"p2pmsg.{each}" for each in SATELLITES},
             "examples": "examples", "spark_bridge": "spark_bridge"}  # fmt: skip
    for folder, own in roots.items():
        origins = {
            origin
            for _, tree in modules(folder)
            for node in ast.walk(tree)
            for origin in origins_of(node)
            if origin.partition(".")[0] in PACKAGES and not f"{origin}.".startswith(f"{own}.")
        }
        found[own] = {each for each in origins if each not in PUBLIC | {"spark_bridge"}}
    return {own: origins for own, origins in found.items() if origins}


def origins_of(node):
    """Return the modules that a statement imports from; of `from p2pmsg import x` its module x."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom) or node.level:
        return []
    names = [f"{node.module}.{alias.name}" for alias in node.names]
    inner = [each for each in names if (ROOT / f"{each.replace('.', '/')}.py").exists()]
    return [node.module, *inner]


def test_satellites_import_what_users_can():
    assert private_imports() == PRIVATE_IMPORTS, "add it to a public module, or do without"


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize(
    ("find", "known"),
    [
        (engine_writes, ENGINE_WRITES),
        (callbacks_set, CALLBACKS_SET),
        (private_names, PRIVATE_NAMES),
        (reaches, REACHES),
    ],
    ids=["engines' state", "callbacks", "private names", "what peers have"],
)
def test_nobody_reaches_into_what_is_not_theirs(find, known):
    found = find()
    new = {what: where for what, where in found.items() if what not in known}
    assert not new, "an engine, or its class, has to offer it"
    assert known <= found.keys(), f"take out of the list: {sorted(known - found.keys())}"


SAMPLE = """
import asyncio, _thread
class Peer:
    def __init__(self, core):
        self.engine = core
        self.engine.closing = True
        core.open["a"], self.x = 1, 2
        self.other.on_end = self._end
        self.table.make = lambda: None
        self._own = self._end
        asyncio._get_running_loop()
        self.lock._is_owned()
    def _end(self): ...

class Face:
    def __init__(self, driver, peer):
        self._driver, self._peer = driver, peer
        self._batch = self._peer.batch if self.is_open else Batch()
    def publish(self):
        driver, peer = self._driver, self._peer
        peer.is_due = self._batch.next = peer.core.session
        batch = self._batch
        batch.put(peer.stats().count, self._peer.name)
"""


def test_it_finds_what_it_looks_for(monkeypatch):
    tree = ast.parse(SAMPLE)
    monkeypatch.setattr("tests.unit.test_layers.modules", lambda *packages: [("sample", tree)])
    own_names.cache_clear()
    try:
        assert engine_writes().keys() == {"self.engine.closing", "core.open['a']"}
        assert callbacks_set().keys() == {"self.other.on_end", "self.table.make"}
        assert private_names().keys() == {"_thread", "_get_running_loop", "_is_owned"}
        reached = {"is_due", "core.session", "batch.next", "batch.put"}
        assert reaches().keys() == {f"self._peer.{each}" for each in reached}
    finally:
        own_names.cache_clear()
