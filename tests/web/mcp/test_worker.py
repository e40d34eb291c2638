"""The worker behind the tools: one call a line, one answer a line."""

import pytest

pytest.importorskip("mcp")

from foretell.web.mcp import answers, worker


def test_an_answer_and_an_error_are_one_line_each() -> None:
    assert "h200" in worker.reply({"tool": "devices", "fields": {"name": None, "maker": None}})["text"]
    error = worker.reply({"tool": "devices", "fields": {"name": "h201", "maker": None}})["error"]
    assert error.startswith("Unknown device 'h201'")


def test_a_bug_and_a_lack_of_memory_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_tool: str, fields: dict[str, bool]) -> str:
        raise MemoryError if fields["much"] else ZeroDivisionError("division by zero")

    monkeypatch.setattr(answers, "answer", fail)
    assert "division by zero" in worker.reply({"tool": "devices", "fields": {"much": False}})["error"]
    assert worker.reply({"tool": "devices", "fields": {"much": True}})["tainted"] is True
