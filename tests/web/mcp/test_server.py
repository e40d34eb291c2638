"""The server, called by the SDK's own client over standard input and output."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters

from foretell.errors import InputError
from foretell.testing import tiny_onnx
from foretell.web.mcp.server import McpSettings, tool_list

GOOD: Sequence[tuple[str, dict[str, Any], str]] = (
    ("devices", {}, "devices"),
    ("predict", {"model": "net.onnx", "device": "l4", "batch_size": 4}, "latency_ms"),
    ("fit", {"model": "net.onnx", "device": "t4"}, "fits"),
    ("advise", {"model": "net.onnx", "devices": ["l4"], "mig": False}, "best"),
    ("improve", {"model": "net.onnx"}, "changes"),
    ("share", {"of": ["net.onnx", "net.onnx"]}, "jobs"),
    ("llm", {"model": "meta-llama/Llama-3.1-8B"}, "fits"),
    ("inspect", {"model": "net.onnx"}, "parameters"),
)
BAD: Sequence[tuple[str, dict[str, Any], str]] = (
    ("predict", {"model": "other/net.onnx"}, "There is no file 'other/net.onnx' in the allowed folder."),
    ("predict", {"model": "../net.onnx"}, "not inside the allowed folder"),
    ("predict", {"model": "broken.onnx"}, "broken.onnx"),
    ("predict", {"model": "net.onnx", "device": "l5"}, "Unknown device 'l5'"),
    ("fit", {"model": "net.onnx", "dtype": "fp12"}, "dtype"),
    ("advise", {"model": "net.onnx", "clouds": ["moon"]}, "moon"),
    ("improve", {"model": "net.onnx", "by": "speed"}, "Unknown objective 'speed'"),
    ("share", {"of": ["net.onnx", "net.onnx"], "method": "magic"}, "Unknown method 'magic'"),
    ("llm", {"model": "nobody/nothing"}, "nobody/nothing"),
    ("inspect", {"model": "net.py:build"}, "allowed are timm:NAME"),
    ("devices", {"name": "h201"}, "Unknown device 'h201'"),
    ("shutdown", {}, "Unknown tool 'shutdown'"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    onnx.save(tiny_onnx(), models / "net.onnx")
    (models / "broken.onnx").write_bytes(b"not a model at all")
    onnx.save(tiny_onnx(), tmp_path / "net.onnx")
    return models


async def _call_all(folder: Path) -> tuple[list[str], list[Any]]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "foretell", "mcp", "--folder", str(folder), "--workers", "2"]
    )
    async with Client(server) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        # all side by side: the workers take them one after the other
        calls = [client.call_tool(tool, values) for tool, values, _ in (*GOOD, *BAD)]
        return names, await asyncio.gather(*calls)


def test_every_tool_answers_good_and_bad_arguments(folder: Path) -> None:
    names, results = asyncio.run(_call_all(folder))
    assert names == [tool.name for tool in tool_list()]
    for (tool, values, key), result in zip(GOOD, results[: len(GOOD)], strict=True):
        (content,) = result.content
        assert not result.is_error, (tool, values, content.text)
        assert key in json.loads(content.text)
        assert str(folder) not in content.text
    for (tool, values, message), result in zip(BAD, results[len(GOOD) :], strict=True):
        (content,) = result.content
        assert result.is_error, (tool, values, content.text)
        assert message in content.text
        assert "\n" not in content.text


def test_tools_are_read_only_and_described() -> None:
    for tool in tool_list():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.description
        assert tool.input_schema["type"] == "object"


def test_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    McpSettings(tmp_path).check()
    for settings in (McpSettings(tmp_path / "absent"), McpSettings(timeout_s=0), McpSettings(workers=0)):
        with pytest.raises(InputError):
            settings.check()
    with pytest.raises(InputError, match="it must be 512 or more"):
        McpSettings(memory_mib=10).check()
