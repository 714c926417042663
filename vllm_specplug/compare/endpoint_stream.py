"""One streamed completion: from its events to the output of a request, as `worker.Worker.generate` has it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vllm_specplug.compare.measure import UNKNOWN_TOKEN
from vllm_specplug.errors import EndpointError


def read_answer(
    events: Iterable[tuple[float, str]], start: float, steps_known: bool, max_tokens: int | None = None
) -> dict[str, Any]:
    """Read a stream to its end.

    A chunk with tokens is taken for a step of the target. A proxy that puts chunks together, as Ray Serve's does every
    50 ms, makes `num_forwards` and with it tokens_per_forward wrong: the caller says whether to believe it. So does
    vLLM's own front-end, a little, when the engine is ahead of it: it sends what has come together as one chunk.

    Args:
        events: time of arrival (`time.perf_counter`) and data of each event.
        start: the same clock when the request was handed in.
        steps_known: whether each chunk is a step of the target.
        max_tokens: as many were asked for at most; None: no limit.
    Returns:
        token_ids (each `measure.UNKNOWN_TOKEN` where the server tells none), num_forwards (None: not known), ttft_s
        and e2e_s (first and last chunk with a token, s from `start`), finish_reason, and text.
    Raises:
        EndpointError: an event is broken, the server reports an error, or no token came, none can be counted, or usage
            alone tells their number and says more than were asked for.
    """
    token_ids: list[int] = []
    texts: list[str] = []
    times: list[float] = []
    finish_reason: str | None = None
    usage: int | None = None
    for now, data in events:
        chunk = _object(data)
        usage = _completion_tokens(chunk, usage)
        for choice in _choices(chunk, data):
            ids, text = choice.get("token_ids"), choice.get("text")
            if ids or text:
                times.append(now - start)
            token_ids += _ids(ids, data)
            texts.append(_text(text, data))
            finish_reason = choice.get("finish_reason") or finish_reason
    if not times or usage == 0:
        raise EndpointError("no_tokens", f"the answer has no token (finish reason {finish_reason})")
    if token_ids and usage is not None and usage != len(token_ids):
        raise EndpointError("malformed", f"the answer has {len(token_ids)} token ids, its usage says {usage}")
    if not token_ids and usage is None:
        raise EndpointError("no_count", "the answer has neither token ids nor usage, so its tokens cannot be counted")
    if not token_ids and max_tokens is not None and usage is not None and usage > max_tokens:
        raise EndpointError("malformed", f"usage says {usage} tokens, at most {max_tokens} were asked for")
    known = bool(token_ids)
    return {
        "token_ids": token_ids if known else [UNKNOWN_TOKEN] * (usage or 0),
        "num_forwards": len(times) if known and steps_known else None,
        "ttft_s": times[0],
        "e2e_s": times[-1],
        "finish_reason": finish_reason,
        "text": "".join(texts),
    }


def _object(data: str) -> Mapping[str, Any]:
    try:
        chunk = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EndpointError("malformed", f"a chunk is no JSON: {data[:100]!r}") from error
    if not isinstance(chunk, dict):
        raise EndpointError("malformed", f"a chunk is no object: {data[:100]!r}")
    if chunk.get("error"):
        said = chunk["error"]
        raise EndpointError("server", str(said.get("message", said) if isinstance(said, dict) else said)[:300])
    return chunk


def _choices(chunk: Mapping[str, Any], data: str) -> Sequence[Mapping[str, Any]]:
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise EndpointError("malformed", f"a chunk has no list of choices: {data[:100]!r}")
    return choices


def _ids(found: Any, data: str) -> list[int]:
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(token) is int and token >= 0 for token in found):
        raise EndpointError("malformed", f"token_ids of a chunk are no list of token ids: {data[:100]!r}")
    return found


def _text(found: Any, data: str) -> str:
    if found is not None and not isinstance(found, str):
        raise EndpointError("malformed", f"the text of a chunk is no text: {data[:100]!r}")
    return found or ""


def _completion_tokens(chunk: Mapping[str, Any], before: int | None) -> int | None:
    usage = chunk.get("usage")
    found = usage.get("completion_tokens") if isinstance(usage, dict) else None
    if type(found) is int and found < 0:
        raise EndpointError("malformed", f"usage says {found} completion_tokens, expected a count")
    return found if type(found) is int else before
