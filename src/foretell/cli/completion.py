"""Cli: what a shell suggests for a device and for a model while a user types.

Names of timm and torchvision are found in the text of the installed libraries: importing them would take seconds, and a
shell asks at every key.
"""

import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

_MOST = 200  # more help nobody
_PREFIXES = ("timm:", "torchvision:", "hf:")
_REGISTERED = re.compile(r"^@register_model(?:\(\))?\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_MACHINE = ("cuda", "cpu")
_MEASURING = frozenset({"profile", "collect", "calibrate", "characterise"})  # their device is one of this machine

Suggest = Callable[[str], list[CompletionItem]]


class _Completed(click.types.StringParamType):
    """A text, with suggestions while it is typed."""

    def __init__(self, suggest: Suggest) -> None:
        self._suggest = suggest

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The suggestions for what has been typed so far."""
        del ctx, param
        return self._suggest(incomplete)


def with_completion(command: click.Command, name: str) -> click.Command:
    """The command, whose devices and models are suggested; nothing else about it changes."""
    suggest = {**_SUGGESTED, "device": _machine} if name in _MEASURING else _SUGGESTED
    for parameter in command.params:
        if parameter.name in suggest and type(parameter.type) is click.types.StringParamType:
            parameter.type = _Completed(suggest[parameter.name])
    return command


def suggest_device(incomplete: str) -> list[CompletionItem]:
    """Devices of the catalogue, and files of the user's.

    >>> [item.value for item in suggest_device("h20")]
    ['h20', 'h200', 'h200-nvl']
    """
    from foretell.devices import all_devices

    own = [CompletionItem(incomplete, type="file")] if "/" in incomplete or incomplete.endswith(".toml") else []
    return _items(sorted(device.id for device in all_devices()), incomplete) + own


def suggest_devices(incomplete: str) -> list[CompletionItem]:
    """Devices in a list with commas: the last one is completed.

    >>> [item.value for item in suggest_devices("l4,h200-")]
    ['l4,h200-nvl']
    """
    before, comma, last = incomplete.rpartition(",")
    return [CompletionItem(before + comma + item.value) for item in suggest_device(last)]


def suggest_model(incomplete: str) -> list[CompletionItem]:
    """Names of timm, torchvision and Hugging Face after their prefix; before it, prefixes and files."""
    if incomplete.startswith("hf:"):
        from foretell.frontends.huggingface.configs import known_models

        names = known_models()
        # most are known without their owner, too
        both = dict.fromkeys([*names, *(name.rpartition("/")[2] for name in names)])
        return _items([f"hf:{name}" for name in both], incomplete)
    for library in ("timm", "torchvision"):
        if incomplete.startswith(f"{library}:"):
            return _items([f"{library}:{name}" for name in registered(library)], incomplete)
    return [*_items(_PREFIXES, incomplete), CompletionItem(incomplete, type="file")]


def registered(library: str) -> list[str]:
    """The models that an installed library registers, read from its text; none where it is not installed."""
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        return []
    folder = Path(spec.origin).parent / "models"
    return sorted(
        {name for file in folder.rglob("*.py") for name in _REGISTERED.findall(file.read_text(encoding="utf-8"))}
    )


def _machine(incomplete: str) -> list[CompletionItem]:
    return _items(_MACHINE, incomplete)


def _items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MOST]


_SUGGESTED: dict[str | None, Suggest] = {
    "device": suggest_device, "devices": suggest_devices, "model": suggest_model, "models": suggest_model,
    "first": suggest_model, "second": suggest_model,
}  # fmt: skip
