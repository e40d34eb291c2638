"""Workflows: the frameworks whose models are converted: which are installed, where, and installing one."""

from collections.abc import Callable
from dataclasses import dataclass

from foretell.errors import UnknownNameError
from foretell.frontends.converted.environments import FRAMEWORKS, Environment, find_environment, install, remove
from foretell.registry import did_you_mean

_ALIASES = {"tensorflow": "keras", "tf": "keras", "paddlepaddle": "paddle", "flax": "jax"}


@dataclass(frozen=True)
class FrameworkState:
    """One framework: what it is called, where its converter is, and in which versions; None where it is absent."""

    name: str
    title: str
    python: str | None
    own_environment: bool
    versions: str | None


def list_frameworks() -> tuple[FrameworkState, ...]:
    """All frameworks that a converter is known for."""
    return tuple(_state(name, find_environment(name)) for name in FRAMEWORKS)


def install_framework(name: str, tell: Callable[[str], None] = lambda _: None) -> FrameworkState:
    """Make the environment of a framework; an older one is replaced."""
    known = find_framework(name)
    return _state(known, install(known, tell))


def remove_framework(name: str) -> bool:
    """Delete the environment of a framework; says whether there was one."""
    return remove(find_framework(name))


def find_framework(name: str) -> str:
    """The name of a framework as people write it.

    >>> find_framework("TensorFlow")
    'keras'
    """
    plain = name.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in FRAMEWORKS:
        raise UnknownNameError(f"Unknown framework {name!r}.{did_you_mean(plain, FRAMEWORKS)}")
    return plain


def _state(name: str, found: Environment | None) -> FrameworkState:
    title = FRAMEWORKS[name].title
    if found is None:
        return FrameworkState(name, title, None, False, None)
    return FrameworkState(name, title, str(found.python), found.own, found.versions)
