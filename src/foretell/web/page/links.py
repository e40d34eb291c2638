"""Web: links that carry a question: the fields of a tab in the address, as ``?tab=predict&model=timm:resnet50``."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

_MAX_CHARACTERS = 4096

# Runs in the browser when a button is pressed: the address gets the question, without a new page. An upload is private
# to its visitor, so a question about one has no link.
_SCRIPT = """
(...values) => {
  const names = NAMES, question = new URLSearchParams({tab: 'TAB'});
  let upload = false;
  names.forEach((name, place) => {
    const value = values[place];
    if (!name) { upload = upload || Boolean(value); return; }
    if (value === null || value === undefined || value === '' || value.length === 0) return;
    question.set(name, Array.isArray(value) ? value.join(',') : String(value));
  });
  const address = window.location.pathname + (upload ? '' : '?' + question.toString());
  window.history.replaceState(null, '', address);
  return values;
}
"""


def link_script(tab: str, names: Sequence[str]) -> str:
    """The script that writes the question of a tab into the address; a field without a name is an upload."""
    return _SCRIPT.replace("NAMES", str(list(names))).replace("TAB", tab)


def read_link(address: str) -> tuple[str, dict[str, str]]:
    """The tab and the fields that the query of an address names.

    >>> read_link("?tab=predict&model=timm:resnet50&devices=h200,a100")
    ('predict', {'model': 'timm:resnet50', 'devices': 'h200,a100'})
    >>> read_link("")
    ('', {})
    """
    found = {name: values[-1] for name, values in parse_qs(address[:_MAX_CHARACTERS].lstrip("?")).items()}
    return found.pop("tab", ""), found


def field_values(names: Sequence[str], defaults: Sequence[Any], given: Mapping[str, str]) -> list[Any]:
    """The values of the fields of a tab: those of a link, in the kind that the field has, else its default.

    >>> field_values(["devices", "batch_size", "mig"], [["h200"], 1, True], {"batch_size": "8", "mig": "false"})
    [['h200'], 8, False]
    """
    return [
        _as_kind(given[name], default) if name in given else default
        for name, default in zip(names, defaults, strict=True)
    ]


def _as_kind(text: str, default: Any) -> Any:
    if isinstance(default, bool):
        return text.lower() == "true"
    if isinstance(default, int):
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default
    return [word for word in text.split(",") if word] if isinstance(default, list) else text
