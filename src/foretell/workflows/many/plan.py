"""Workflows: the plan of many predictions, read from TOML and checked before anything is predicted.

[models]                        files, specs and list, or a space
files = ["zoo/*.onnx"]          patterns, from the folder of this file
specs = ["timm:resnet50"]
list = "models.txt"             a model a line
space = "space.py:network"      a function: number → model; it runs with --trust
count = 1_000_000               how many networks of the space: 0, 1, 2, …

[options]                       as of foretell predict; every combination of the four lists is predicted
devices = ["h200", "l4"]
batch_sizes = [1, 32]
dtypes = ["fp16"]
slices = []
mode = "inference"

[shards]
models = 1000                   models in a file
timeout_s = 1800                a shard that takes longer is given to another worker
"""

import ast
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from foretell.errors import DataError, ForetellError, InputError
from foretell.features.versions import FEATURES_VERSION
from foretell.toml_rows import Row, read_own
from foretell.workflows.workload import read_configuration

PAGE = "docs/many.md"
SHARD_MODELS, TIMEOUT_S = 1000, 1800.0
MAX_ROWS = 1_000_000  # of a shard: a worker holds them all
_MODELS = ("files", "specs", "list", "space", "count")
_LISTS = {"devices": "device", "batch_sizes": "batch_size", "dtypes": "dtype", "slices": "slice"}
_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "devices": ("h200",), "batch_sizes": (1,), "dtypes": ("fp32",), "slices": (None,),
}  # fmt: skip
_TEXTS = ("mode", "runtime", "optimizer", "input", "predictor")
_SWITCHES = ("channels_last", "allow_unknown")
_CONFIGURED = ("device", "batch_size", "dtype", "slice", "mode", "runtime", "optimizer", "channels_last")

_SECTIONS = ("models", "options", "shards")
_NO_NAMES: tuple[tuple[str, ...], str] = ((), "")

T = TypeVar("T")


@dataclass(frozen=True)
class ManyPlan:
    """Which models are predicted, and how: each model with each of ``combinations``, options of `predict_many`.

    The models are ``names`` (files and specs), or ``count`` networks of ``space``: ``file.py:function``, whose file
    has the digest ``space_digest``. ``identity`` changes with everything that the predictions depend on.
    """

    names: tuple[str, ...]
    space: str
    space_digest: str
    count: int
    combinations: tuple[Mapping[str, Any], ...]
    shard_models: int
    timeout_s: float
    identity: str

    @property
    def models(self) -> int:
        """How many models there are."""
        return len(self.names) + self.count

    @property
    def shards(self) -> int:
        """How many files will be written."""
        return -(-self.models // self.shard_models)

    def models_of(self, shard: int) -> tuple[int, int]:
        """The first model of a shard, and the one after its last."""
        first = shard * self.shard_models
        return first, min(first + self.shard_models, self.models)


def read_many_plan(path: Path) -> ManyPlan:
    """The plan of a file. Where it has several mistakes, the error has the first one and says how many there are."""
    plan, mistakes = check_many_plan(path)
    if plan is None:
        more = len(mistakes) - 1
        raise InputError(mistakes[0] + (f" (and {more} more)" if more else ""))
    return plan


class _Mistakes(list[str]):
    """What is wrong with a plan, a sentence each."""

    def tried(self, otherwise: T, read: Callable[..., T], *arguments: Any) -> T:
        """What ``read`` returns; where it raises an error of ours, that is a mistake more."""
        try:
            return read(*arguments)
        except ForetellError as error:
            self.append(str(error))
            return otherwise


def check_many_plan(path: Path) -> tuple[ManyPlan | None, list[str]]:
    """The plan of a file, or all of its mistakes, a sentence each."""
    mistakes, empty = _Mistakes(), Row(str(path), {})
    file = mistakes.tried(empty, read_own, path, PAGE)
    if mistakes:
        return None, mistakes
    mistakes += _unknown_keys(file, _SECTIONS)
    models, options, shards = (mistakes.tried(empty, _section, file, name) for name in _SECTIONS)
    mistakes += _unknown_keys(models, _MODELS)
    mistakes += _unknown_keys(options, (*_LISTS, *_TEXTS, *_SWITCHES, "context"))
    mistakes += _unknown_keys(shards, ("models", "timeout_s"))
    names: tuple[str, ...]
    names, signature = mistakes.tried(_NO_NAMES, _names, models, path.parent)
    space, digest = mistakes.tried(("", ""), _space, models, path.parent)
    count = mistakes.tried(0, _count, models)
    combinations = _combinations(options, mistakes)
    mistakes += _contradictions(combinations)
    shard_models = mistakes.tried(SHARD_MODELS, _shard_models, shards)
    timeout_s = mistakes.tried(TIMEOUT_S, _timeout_s, shards)
    if names and space:
        mistakes.append(f"{path}: a plan has a space, or files, specs and a list; write two plans.")
    if not mistakes and not names and not count:
        mistakes.append(f"{path} names no models: give files, specs, list or space in [models].")
    if not mistakes and shard_models * len(combinations) > MAX_ROWS:
        mistakes.append(
            f"{path}: a shard of {shard_models:,} models in {len(combinations):,} combinations has more than "
            f"{MAX_ROWS:,} predictions; give fewer models in [shards]."
        )
    if mistakes:
        return None, mistakes
    written = json.dumps([signature, space, digest, count, combinations, shard_models, _version(), FEATURES_VERSION])
    identity = hashlib.sha256(written.encode()).hexdigest()
    return ManyPlan(names, space, digest, count, combinations, shard_models, timeout_s, identity), []


def _shard_models(row: Row) -> int:
    return row.count("models", default=SHARD_MODELS)


def _timeout_s(row: Row) -> float:
    return row.maybe_number("timeout_s", least=0, open_end=True) or TIMEOUT_S


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("foretell")
    except metadata.PackageNotFoundError:  # a checkout that was not installed
        return ""


def _section(file: Row, name: str) -> Row:
    if name not in file.fields:
        return Row(f"{file.where}, {name}", {})
    return file.row(name)


def _unknown_keys(row: Row, names: tuple[str, ...]) -> Iterator[str]:
    for name in row.fields:
        try:
            Row(row.where, {name: None}).allow(*names)
        except DataError as error:
            yield str(error)


def _names(row: Row, folder: Path) -> tuple[tuple[str, ...], str]:
    """The files and specs, and a text that changes with them."""
    names: list[str] = []
    for pattern in row.texts("files"):
        found = sorted(str(path) for path in _matching(row, folder, pattern) if path.exists())
        if not found:
            raise InputError(f"{row.where}: no file matches {pattern!r} in {folder.resolve()}.")
        names += found
    names += row.texts("specs")
    lines = row.maybe_text("list")
    if lines is not None:
        try:
            text = (folder / lines).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise InputError(f"{row.where}: cannot read the list {folder / lines}: {why}.") from error
        listed = [line.strip() for line in text.splitlines() if line.strip()]
        # names of files are meant from the folder of the plan, as patterns are
        names += [str((folder / name).resolve()) if (folder / name).exists() else name for name in listed]
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0{_state(Path(name))}\n".encode(errors="backslashreplace"))
    return tuple(names), digest.hexdigest()


def _matching(row: Row, folder: Path, pattern: str) -> list[Path]:
    try:
        if Path(pattern).is_absolute():
            anchor = Path(pattern).anchor
            return list(Path(anchor).glob(str(Path(pattern).relative_to(anchor))))
        return list(folder.resolve().glob(pattern))
    except (ValueError, NotImplementedError) as error:
        raise InputError(f"{row.where}: {pattern!r} is no pattern of files: {error}.") from error


def _state(path: Path) -> str:
    """Size and time of a file: a model that was changed after a part of the plan is another model."""
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


def _space(row: Row, folder: Path) -> tuple[str, str]:
    """``file.py:function`` with the whole path, and the file's digest. The file is parsed; it does not run."""
    text = row.maybe_text("space")
    if text is None:
        if "count" in row.fields:
            raise InputError(f"{row.where}: count says how many networks of a space there are; give space as well.")
        return "", ""
    name, colon, function = text.rpartition(":")
    path = (folder / name).resolve()
    if not colon or not function.isidentifier():
        raise InputError(f"{row.where}: space is {text!r}; write a file and a function: 'space.py:network'.")
    try:
        source = path.read_bytes()
        defined = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    except OSError as error:
        raise InputError(f"{row.where}: cannot read {path}: {error.strerror}.") from error
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{row.where}: {path} is not Python: {error}.") from error
    if function not in defined:
        raise InputError(f"{row.where}: {path} has no function {function!r}. It has: {', '.join(defined) or 'none'}.")
    if "count" not in row.fields:
        raise InputError(f"{row.where}: space needs count: how many networks of it are predicted.")
    return f"{path}:{function}", hashlib.sha256(source).hexdigest()


def _count(row: Row) -> int:
    return row.count("count", default=1) if "count" in row.fields else 0


def _combinations(row: Row, mistakes: _Mistakes) -> tuple[dict[str, Any], ...]:
    """The options of `predict_many`, for each combination of the lists."""
    nothing: tuple[Any, ...] = ()
    lists = {name: mistakes.tried(nothing, _list, row, name) for name in _LISTS}
    single: dict[str, Any] = {}
    for name in _TEXTS:
        value = mistakes.tried(None, row.maybe_text, name)
        if value is not None:
            single["input_shape" if name == "input" else name] = value
    for name in _SWITCHES:
        if mistakes.tried(False, _switch, row, name):
            single[name] = True
    if "context" in row.fields:
        single["context"] = mistakes.tried(1, _context, row)
    return tuple(
        {_LISTS[name]: value for name, value in zip(lists, values, strict=True)} | single
        for values in itertools.product(*lists.values())
    )


def _context(row: Row) -> int:
    return row.count("context", default=1)


def _list(row: Row, name: str) -> tuple[Any, ...]:
    values = row.fields.get(name)
    kind, what = (int, "numbers") if name == "batch_sizes" else (str, "texts in quotes")
    if values is None or (name == "slices" and values == []):
        return _DEFAULTS[name]
    if not isinstance(values, list) or not values or not all(type(value) is kind for value in values):
        raise InputError(f"{row.where}: {name} must be a list of {what} with at least one entry.")
    if len(set(values)) < len(values):
        raise InputError(f"{row.where}: {name} has an entry twice.")
    return tuple(values)


def _switch(row: Row, name: str) -> bool:
    value = row.fields.get(name, False)
    if not isinstance(value, bool):
        raise InputError(f"{row.where}: {name} is {value!r}; it must be true or false.")
    return value


def _contradictions(combinations: tuple[Mapping[str, Any], ...]) -> list[str]:
    """What `predict` would refuse in every model: devices, dtypes, slices, modes. Each is said once."""
    mistakes: dict[str, None] = {}
    for options in combinations:
        try:
            read_configuration(**{name: options[name] for name in _CONFIGURED if name in options})
        except ForetellError as error:
            mistakes[str(error)] = None
    return list(mistakes)
