"""The import rules of the house, and the few others that a linter does not know."""

import ast
import graphlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "foretell"
FILES = sorted(PACKAGE.rglob("*.py"))
LAB_FILES = sorted(path for path in (ROOT / "lab").rglob("*.py") if "tests" not in path.relative_to(ROOT).parts)

# imports go down only; rooms on one line do not see each other
FLOORS = [
    {"cli"},
    {"web"},
    {"workflows"},
    {"training", "rendering"},
    {"predictors", "advisors", "scheduling"},
    {"frontends", "profiling", "datasets", "features"},
    {"records"},
    {"graph", "devices"},
    {"processes", "readable", "toml_rows"},
    {"errors", "units", "registry", "optional", "files"},
    {"frozen"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# on the lowest floor the error tree is the root: what raises may import it
ROOTS = {"registry": {"errors"}, "optional": {"errors"}}
OUTSIDE = {"__init__", "__main__", "testing"}  # the public routes, and what only tests import
MOST_FILES = 14
HEAVY = {"torch", "torchvision", "timm", "transformers"}
NOT_CORE = HEAVY | {"onnxruntime", "pandas", "pyarrow", "lightgbm", "jinja2"}
HEAVY_ROOMS = {"frontends", "profiling", "predictors", "training"}
LONGEST_FILE = 500
BANNED_NAMES = {"utils", "helpers", "common", "misc", "core", "manager"}
# limits on what is accepted, not conversions of units
LITERALS_ALLOWED = {
    "frontends/request.py": {"2**40"},  # elements of one input
    "workflows/workload.py": {"2**20"},  # items of one batch
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree_of(path)))


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
            if node.module == "foretell":
                yield from (f"foretell.{alias.name}" for alias in node.names)


NAMED_MODULE = re.compile(r"(?<![\w.])(?:foretell|lab)(?:\.[a-z_]+)+(?![\w.])")


def named(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The modules that strings name: entries of registries, arguments of importlib, ``-m`` commands, resources."""
    documented = {id(node.body[0].value) for node in nodes if _has_docstring(node)}  # type: ignore[attr-defined]
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from (match.group(0) for match in NAMED_MODULE.finditer(node.value) if is_module(match.group(0)))


def _has_docstring(node: ast.AST) -> bool:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


@cache
def is_module(name: str) -> bool:
    path = (ROOT if name.startswith("lab") else ROOT / "src").joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def module_of(path: Path) -> str:
    place = path.relative_to(PACKAGE.parent if path.is_relative_to(PACKAGE) else ROOT)
    return ".".join(place.with_suffix("").parts).removesuffix(".__init__")


def modules_used(path: Path) -> set[str]:
    """All modules of ours that a file imports, now or when a function runs, or names in a string."""
    nodes = nodes_of(path)
    for_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    used = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in for_types:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            used |= {name if is_module(name) else node.module for name in inner}
        elif isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
    return {name for name in used | set(named(nodes)) if is_module(name)} - {module_of(path)}


def at_import(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements that run when a module is imported."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, ast.If):
            if not re.search(r"\bTYPE_CHECKING\b", ast.unparse(statement.test)):
                waiting += statement.body
            waiting += statement.orelse
        elif isinstance(statement, ast.Try):
            waiting += [*statement.body, *statement.orelse, *statement.finalbody]
            waiting += [inner for handler in statement.handlers for inner in handler.body]
        elif isinstance(statement, ast.With | ast.ClassDef):
            waiting += statement.body


def test_there_is_something_to_check() -> None:
    assert len(FILES) > 30
    assert {room_of(f) for f in FILES} <= set(FLOOR) | OUTSIDE


def check_every_file(room: str, check: Callable[[Path], None]) -> None:
    """All files of a room are checked, and all that fail are named."""
    failed = []
    for path in FILES:
        if room_of(path) == room:
            try:
                check(path)
            except AssertionError as error:
                failed.append(f"{path.relative_to(PACKAGE)}: {error}")
    assert not failed, "\n".join(failed)


every_room = pytest.mark.parametrize("room", sorted({room_of(path) for path in FILES}))


@every_room
def test_imports_go_down_only(room: str) -> None:
    check_every_file(room, imports_go_down)


def imports_go_down(path: Path) -> None:
    room = room_of(path)
    names = {*imported(nodes_of(path)), *named(nodes_of(path))}
    assert not {name for name in names if name.split(".")[0] == "lab"}, "the product knows no laboratory"
    targets = {name.split(".")[1] for name in names if name.startswith("foretell.")}
    targets -= {"__future__", room}
    if room != "testing":
        assert "testing" not in targets, "only tests import foretell.testing"
    if room in OUTSIDE:
        return
    assert "foretell" not in set(imported(nodes_of(path))), "import from the room, not from the public routes"
    for target in targets:
        assert FLOOR[target] > FLOOR[room] or target in ROOTS.get(room, ()), f"{room} must not import {target}"


def test_no_module_needs_itself_by_a_detour() -> None:
    """Imports inside functions and modules named in strings count; imports for type checkers do not."""
    needs = {module_of(path): modules_used(path) for path in (*FILES, *LAB_FILES)}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"a cycle: {' → '.join(error.args[1])}")


@pytest.mark.parametrize(
    "folder", sorted({path.parent for path in (*FILES, *LAB_FILES)}), ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_folder_is_taken_in_at_a_glance(folder: Path) -> None:
    files = [path.name for path in folder.iterdir() if path.is_file() and path.name != "py.typed"]
    assert len(files) <= MOST_FILES, files


@every_room
def test_heavy_libraries_stay_in_their_rooms(room: str) -> None:
    check_every_file(room, heavy_libraries_stay)


def heavy_libraries_stay(path: Path) -> None:
    heavy = {name for name in imported(nodes_of(path)) if name.split(".")[0] in HEAVY}
    assert not heavy or room_of(path) in HEAVY_ROOMS, heavy


@every_room
def test_source_files_follow_the_code_rules(room: str) -> None:
    check_every_file(room, follows_the_code_rules)


def follows_the_code_rules(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree), "a module says what it is for"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert path.stem not in BANNED_NAMES
    assert not any(part in BANNED_NAMES for part in path.relative_to(PACKAGE).parts)
    if room_of(path) not in ("cli", "web") and path.parent.name != "terminal":
        calls = [n for n in nodes_of(path) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
        assert not [c.lineno for c in calls if c.func.id == "print"], "printing belongs to cli/"  # type: ignore[attr-defined]


@every_room
def test_every_public_function_has_a_docstring(room: str) -> None:
    check_every_file(room, public_functions_have_docstrings)


def public_functions_have_docstrings(path: Path) -> None:
    if room_of(path) == "cli":
        return  # a command's docstring is its help text, checked where commands are tested
    bare = []
    for statement in tree_of(path).body:
        members = statement.body if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_") else []
        for member in (statement, *members):
            if isinstance(member, ast.FunctionDef | ast.ClassDef) and not member.name.startswith("_"):
                bare += [] if ast.get_docstring(member) else [member.name]
    assert not bare, bare


def conversion_factors(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Powers of ten written as 1e3, powers of two as 2**20, and multiplication or division by 1024 and the like."""
    for node in nodes:
        if isinstance(node, ast.Constant) and type(node.value) is float and node.value in (1e3, 1e6, 1e9, 1e12):
            yield repr(node.value)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            text = ast.unparse(node).replace(" ", "")
            if text in ("2**10", "2**20", "2**30", "2**40"):
                yield text
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            for side in (node.left, node.right):
                if isinstance(side, ast.Constant) and side.value in (1000, 1024, 10**6, 1024**2, 10**9, 1024**3):
                    yield repr(side.value)


@every_room
def test_units_are_converted_in_one_place(room: str) -> None:
    check_every_file(room, units_are_converted_in_one_place)


def units_are_converted_in_one_place(path: Path) -> None:
    if path.name == "units.py":
        return
    allowed = LITERALS_ALLOWED.get(path.relative_to(PACKAGE).as_posix(), set())
    assert set(conversion_factors(nodes_of(path))) <= allowed


WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocker())
import foretell
loaded = sorted(m for m in sys.modules if m.startswith("foretell"))
from foretell.testing import tiny_onnx
p = foretell.predict(tiny_onnx(), device="h200", batch_size=4, dtype="fp16", use_cache=False)
assert p.latency_ms.value > 0 and p.memory_mib.value > 0
t = foretell.predict(tiny_onnx(), device="h200", mode="training", optimizer="adamw", use_cache=False)
assert t.latency_ms.value > 0
assert not {heavy!r} & set(sys.modules)
sys.stdout.write(" ".join(loaded))
"""


@pytest.fixture(scope="module")
def loaded_by_import() -> set[str]:
    """What ``import foretell`` loads, in a process where importing torch is an error; it predicts there too."""
    code = WITHOUT_TORCH.format(heavy=NOT_CORE)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return set(done.stdout.split())


def test_prediction_from_onnx_needs_no_torch(loaded_by_import: set[str]) -> None:
    assert {"foretell.graph", "foretell.workflows.predict"} <= loaded_by_import


def test_what_import_loads_names_no_heavy_library_at_its_top(loaded_by_import: set[str]) -> None:
    for path in FILES:
        module = ".".join(("foretell", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        if module in loaded_by_import:
            tops = [s for s in at_import(tree_of(path)) if isinstance(s, ast.Import | ast.ImportFrom)]
            names = {name.split(".")[0] for s in tops for name in imported(ast.walk(s))}
            assert not names & HEAVY, module


def test_prediction_imports_every_core_dependency_and_no_other() -> None:
    """Whoever installs foretell waits for each of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = sorted(re.split(r"[<>=\[]", name)[0] for name in project["dependencies"])
    code = """
import sys
from foretell.cli.main import main
try:
    main(["predict", sys.argv[1], "--no-cache"])
finally:
    sys.stderr.write(" ".join(sorted({name.split(".")[0] for name in sys.modules})))
"""
    model = ROOT / "examples" / "resnet50.onnx"
    done = subprocess.run([sys.executable, "-c", code, str(model)], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert core == [name for name in core if name in loaded]
    assert not {"asyncio", "unittest"} & set(loaded), "they take as long to import as numpy"
    assert not NOT_CORE & set(done.stderr.split())
