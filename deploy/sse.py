"""What arms send, item by item, and what can be told of it without reading JSON at each token.

An item of a stream is an SSE event (`data: {...}` and an empty line), or a list of them that a replica put together;
Ray also allows objects and dictionaries. Knows their text alone.
"""

from __future__ import annotations

import json
from typing import Any

DONE = "data: [DONE]"
_OPENS = "data: {"
_ERROR = 'data: {"error"'
# In JSON as vLLM writes it. A text that holds the same has its quotes escaped, so it is never taken for it.
_NO_CHOICES = '"choices":[]'
_FINISHES = '"finish_reason":"'
_FINGERPRINT = '"system_fingerprint"'


def events(item: Any) -> list[str]:
    """The events of an item."""
    return [_text(event) for event in (item if isinstance(item, list) else [item])]


def _text(event: Any) -> str:
    if isinstance(event, str):
        return event
    if isinstance(event, dict):
        return f"data: {json.dumps(event, separators=(',', ':'))}\n\n"
    return f"data: {event.model_dump_json()}\n\n"


def error_of(item: Any) -> Any:
    """The error that an item is, as an object or a dictionary; None: it is none."""
    if isinstance(item, list):
        item = item[0] if item else None
    if isinstance(item, str):
        return _fields(item)["error"] if item.startswith(_ERROR) else None
    return item.get("error") if isinstance(item, dict) else getattr(item, "error", None)


def usage_of(event: str) -> dict[str, Any] | None:
    """The fields of the event that holds token counts and no text, at the end of a stream; None: it is another."""
    if _NO_CHOICES not in event:
        return None
    fields = _fields(event)
    return fields if fields.get("choices") == [] and isinstance(fields.get("usage"), dict) else None


def usage_of_object(item: Any) -> dict[str, Any]:
    """The token counts of an answer that is not streamed; empty: it has none."""
    usage = item.get("usage") if isinstance(item, dict) else getattr(item, "usage", None)
    if usage is None:
        return {}
    return usage if isinstance(usage, dict) else dict(usage.model_dump())


def json_of(item: Any) -> str:
    """An answer that is not streamed."""
    return json.dumps(item) if isinstance(item, dict) else str(item.model_dump_json())


def with_fingerprint(event: str, fingerprint: str) -> str:
    """The same with `system_fingerprint` if it ends a choice and has none, else as it is."""
    if _FINISHES not in event or _FINGERPRINT in event or not event.startswith(_OPENS):
        return event
    return f"{_OPENS}{_FINGERPRINT}:{json.dumps(fingerprint)},{event.removeprefix(_OPENS)}"


def _fields(event: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event.removeprefix("data:"))
    return found
