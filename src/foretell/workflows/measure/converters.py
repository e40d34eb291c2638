"""Workflows: list, install and remove the frameworks that convert models."""

from collections.abc import Callable
from dataclasses import dataclass

from foretell.errors import UnknownNameError
from foretell.frontends.converted.environments import FRAMEWORKS, Environment, find_environment, install, remove
from foretell.registry import did_you_mean

_ALIASES = {"tensorflow": "keras", "tf": "keras", "paddlepaddle": "paddle", "flax": "jax"}


@dataclass(frozen=True)
class FrameworkState:
    """One framework: its name, the Python of its converter and the versions; None if it is not installed."""

    name: str
    title: str
    python: str | None
    own_environment: bool
    versions: str | None


def list_frameworks() -> tuple[FrameworkState, ...]:
    """The state of all frameworks."""
    return tuple(_state(name, find_environment(name)) for name in FRAMEWORKS)


def install_framework(name: str, on_progress: Callable[[str], None] = lambda _: None) -> FrameworkState:
    """Make the environment of a framework; an existing one is replaced."""
    known = find_framework(name)
    return _state(known, install(known, on_progress))


def remove_framework(name: str) -> bool:
    """Delete the environment of a framework; return whether there was one."""
    return remove(find_framework(name))


def find_framework(name: str) -> str:
    """The name of a framework, from its usual spellings.

    >>> find_framework("TensorFlow")
    'keras'
    """
    plain = name.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in FRAMEWORKS:
        raise UnknownNameError(f"Unknown framework {name!r}.{did_you_mean(plain, FRAMEWORKS)}")
    return plain


def _state(name: str, environment: Environment | None) -> FrameworkState:
    title = FRAMEWORKS[name].title
    if environment is None:
        return FrameworkState(name, title, None, False, None)
    return FrameworkState(name, title, str(environment.python), environment.own, environment.versions)
