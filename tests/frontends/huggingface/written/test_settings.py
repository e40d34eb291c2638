"""Which configurations are believed."""

from typing import Any

import pytest

from foretell.frontends.huggingface.written.settings import Optional, UnwrittenError, check_rope, read_settings

DEFAULTS = {"width": 8, "share": 0.1, "gate": True, "kind": "relu", "heads": None, "window": Optional(16)}


def test_what_a_file_leaves_out_has_its_default() -> None:
    settings = read_settings({"width": 4, "share": 1, "window": None}, DEFAULTS)
    assert (settings.width, settings.share, settings.gate, settings.kind) == (4, 1, True, "relu")
    assert (settings.heads, settings.window) == (None, None)
    assert read_settings({}, DEFAULTS).window == 16


@pytest.mark.parametrize(
    "values",
    [
        {"width": "4"}, {"width": True}, {"width": None}, {"width": 4.0}, {"share": "0.1"}, {"share": False},
        {"gate": 1}, {"kind": None}, {"heads": "2"}, {"heads": True}, {"window": 1.5}, {"unheard_of": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_of_another_type_is_not_believed(values: dict[str, Any]) -> None:
    with pytest.raises(UnwrittenError):
        read_settings(values, DEFAULTS)


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("torch_dtype", "bfloat16", "float"),
        ("eos_token_id", [1, 2], ["a"]),
        ("pad_token_id", None, [1]),
        ("rms_norm_eps", 1e-6, 0),
        ("initializer_range", 0.02, 2.5),
        ("use_cache", False, 1),
        ("quantization_config", {}, None),
        ("n_ctx", 1024, True),
    ],
)
def test_keys_that_no_graph_depends_on_have_types(key: str, good: Any, bad: Any) -> None:
    read_settings({key: good}, DEFAULTS, ["n_ctx"])
    with pytest.raises(UnwrittenError):
        read_settings({key: bad}, DEFAULTS, ["n_ctx"])


def test_a_key_of_some_families_is_unknown_to_others() -> None:
    with pytest.raises(UnwrittenError):
        read_settings({"n_ctx": 1024}, DEFAULTS)


def test_rotary_positions_may_differ_in_numbers() -> None:
    check_rope({"rope_theta": 5e5, "rope_scaling": None})
    check_rope({"rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 1e4}})
    with pytest.raises(UnwrittenError):
        check_rope({"rope_scaling": {"type": "linear", "factor": 2}}, "default")
    with pytest.raises(UnwrittenError):
        check_rope({"rope_scaling": {"type": "linear", "factor": 0.5}})
    with pytest.raises(UnwrittenError):
        check_rope({"rope_theta": None})
