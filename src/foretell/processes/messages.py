"""Processes: what a parent and its child say to each other: one JSON object a line."""

from typing import Any

Message = dict[str, Any]
