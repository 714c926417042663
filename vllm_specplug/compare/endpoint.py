"""An arm that is a running server: answers the questions of `worker.Worker`, asked over HTTP. Starts nothing.

`detokenize` is not among them: answers bring their text.
"""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_specplug.chat import chat_tokens
from vllm_specplug.compare.arms import Arm
from vllm_specplug.compare.endpoint_http import Http
from vllm_specplug.compare.endpoint_metrics import Counters, read_counters
from vllm_specplug.compare.endpoint_pacing import send_paced
from vllm_specplug.compare.endpoint_stream import read_answer
from vllm_specplug.compare.worker import TOP_LOGPROBS
from vllm_specplug.errors import CompareError, EndpointError

UNKNOWN = "unknown"
MAX_FAILED_IN_A_ROW = 10
"""So many failed requests after another end the questions to an endpoint: a dead one would cost hours of timeouts."""
_MISSING = ("http_404", "http_405", "http_501")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How running endpoints are asked. No part of what is compared."""

    timeout_s: float = 120.0
    """Longest wait for a connection and for each token."""
    tokenizer: str | None = None
    """Folder or name of the tokenizer, for servers without /tokenize."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise CompareError(f"--timeout-s is {self.timeout_s}, expected a number above 0")


DEFAULT_SETTINGS = EndpointSettings()


class EndpointArm:
    """One running server as an arm. Only one operation is ever under way; its requests run at the same time."""

    def __init__(self, arm: Arm, settings: EndpointSettings) -> None:
        """Ask nothing yet; `start` looks whether it can be measured.

        Raises:
            CompareError: httpx or the key is missing.
        """
        assert arm.endpoint is not None
        self.arm = arm
        self._endpoint = arm.endpoint
        self._tokenizer_name = settings.tokenizer
        self._tokenizer: Any = None
        self._has_tokenize = False
        self._is_vllm = False
        self._extras: dict[str, Any] = {"return_token_ids": True}
        self._failed_in_a_row = 0
        self._lock = threading.Lock()
        try:
            self._http = Http(self._endpoint, settings.timeout_s)
        except CompareError as error:
            raise CompareError(f"arm {arm.name!r}: {error}") from error

    def request(self, op: str, **args: Any) -> Any:
        """Call an operation below.

        Raises:
            CompareError: the server cannot be asked, or refuses; not for single answers of `generate`.
        """
        operations: Mapping[str, Callable[..., Any]] = {
            "start": self.start,
            "tokenize": self.tokenize,
            "generate": self.generate,
            "logprobs": self.logprobs,
        }
        try:
            return operations[op](**args)
        except EndpointError as error:
            raise CompareError(f"arm {self.arm.name!r}: {error}") from error

    def close(self) -> None:
        """Close the connections; the server is left alone."""
        self._http.close()

    def start(self) -> dict[str, Any]:
        """See whether the server can be measured, and what it tells of itself, as `Worker.start` does.

        Returns:
            What no endpoint tells is "unknown" or null: torch, python, dtype, max_num_seqs, kv_cache.
        Raises:
            CompareError, EndpointError: it cannot be reached, lacks the model, or does not stream an answer.
        """
        card = self._model_card()
        version = self._version()
        # /version alone may be a gateway's own; a model that a proxy lists is not owned by vLLM.
        self._is_vllm = version is not None and card.get("owned_by") == "vllm"
        if self._is_vllm:
            # The model's generation_config would otherwise change what is sampled, which offline arms do not read.
            self._extras["repetition_penalty"] = 1.0
        tokens = self._first_tokens()
        self._probe(tokens)
        length = card.get("max_model_len")
        return {
            "vllm": version if self._is_vllm else UNKNOWN,
            "torch": UNKNOWN,
            "python": UNKNOWN,
            "max_model_len": length if isinstance(length, int) else None,
            "dtype": UNKNOWN,
            "max_num_seqs": None,
            "kv_cache": None,
        }

    def tokenize(self, chats: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, list[int]]:
        """Token ids of each conversation, by the server's /tokenize where it has that, else by the tokenizer named.

        Args:
            chats: messages with `role` and `content`, by prompt id.
        Raises:
            CompareError: a prompt is refused.
        """
        found: dict[str, list[int]] = {}
        for prompt_id, messages in chats.items():
            try:
                found[prompt_id] = self._chat_tokens(messages)
            except Exception as error:
                if isinstance(error, EndpointError) and error.kind not in ("http_400", "http_422"):
                    raise  # the server's fault, not the prompt's
                raise CompareError(
                    f"arm {self.arm.name!r}: prompt {prompt_id!r} is refused by the model's tokenizer or chat template "
                    f"({error}); change its messages or leave it out"
                ) from error
        return found

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        arrival_s: Sequence[float] | None = None,
        at_once: int | None = None,
    ) -> dict[str, Any]:
        """Answer some prompts greedily, each in a stream of its own.

        Times are those of a client: they hold the network's, and what the server does besides. num_forwards counts
        chunks with tokens, which are the target's steps only when vLLM is asked directly; null when the server is not
        known to be vLLM, since a proxy that puts chunks together would make it and tokens_per_forward wrong.

        Args:
            prompts, max_tokens, arrival_s, at_once: as `Worker.generate`.
        Returns:
            As `Worker.generate`; an output also has `text` or, where its request failed, `error` ("kind: what").
            num_preemptions: None.
        """
        before = self._counters()
        outputs = send_paced(
            lambda index, came: self._answer(prompts[index], max_tokens[index], came),
            arrival_s or [0.0] * len(prompts),
            at_once,
            hurry=lambda: self._given_up,
        )
        seconds = max((output["arrival_s"] + output["e2e_s"] for output in outputs), default=0.0)
        after = None if before is None else self._counters()
        num_tokens = sum(len(output["token_ids"]) for output in outputs)
        counts = None if before is None or after is None else after.since(before, num_tokens)
        return {"seconds": seconds, "outputs": outputs, "counts": counts, "num_preemptions": None}

    def logprobs(self, prefixes: Sequence[Sequence[int]], candidates: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """As `Worker.logprobs`; a server that gives no log-probabilities knows none of the candidates."""
        answers: list[dict[str, Any]] = []
        for prefix, tokens in zip(prefixes, candidates, strict=True):
            try:
                top = self._top_logprobs(prefix)
            except EndpointError:  # all is measured by now, and no near tie is claimed without them
                top = {}
            answers.append({"candidates": [top.get(token) for token in tokens], "best": max(top.values(), default=0.0)})
        return answers

    def _model_card(self) -> dict[str, Any]:
        url = f"{self._endpoint.url}/models"
        listed = self._http.ask_json("GET", url).get("data")
        cards = {
            card["id"]: card
            for card in (listed if isinstance(listed, list) else ())
            if isinstance(card, dict) and "id" in card
        }
        if self._endpoint.model not in cards:
            there = ", ".join(map(repr, cards)) or "none"
            raise EndpointError("model", f"{url} does not list the model {self._endpoint.model!r}; it lists {there}")
        return dict(cards[self._endpoint.model])

    def _version(self) -> str | None:
        try:
            found = self._http.ask_json("GET", f"{self._endpoint.root}/version").get("version")
        except EndpointError:
            return None
        return found if isinstance(found, str) else None

    def _first_tokens(self) -> list[int]:
        """Tokens of some words; finds out who makes tokens."""
        try:
            self._has_tokenize = True
            return self._chat_tokens([{"role": "user", "content": "Hello"}])
        except EndpointError as error:
            if error.kind not in (*_MISSING, "http_400"):
                raise
            refusal = str(error)
        self._has_tokenize = False
        if self._tokenizer_name is None:
            raise EndpointError(
                "tokenize",
                f"/tokenize cannot be used ({refusal}); name the model's tokenizer with --tokenizer",
            )
        import transformers

        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._tokenizer_name)
        except Exception as error:
            raise CompareError(
                f"the tokenizer {self._tokenizer_name!r} cannot be loaded ({type(error).__name__}: {error}); "
                "name another with --tokenizer"
            ) from error
        return self._chat_tokens([{"role": "user", "content": "Hello"}])

    def _chat_tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if not self._has_tokenize:
            return chat_tokens(self._tokenizer, messages)
        url, model = f"{self._endpoint.root}/tokenize", self._endpoint.model
        try:
            found = self._http.ask_json("POST", url, {"model": model, "messages": [dict(one) for one in messages]})
        except EndpointError as error:
            # What vLLM says of a model without a template. Offline arms get the plain text then (`chat.chat_tokens`).
            if error.kind != "http_400" or "default chat template" not in str(error):
                raise
            text = "\n\n".join(message["content"] for message in messages)
            found = self._http.ask_json("POST", url, {"model": model, "prompt": text})
        tokens = found.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise EndpointError("malformed", f"{url} answered no list of tokens")
        return tokens

    def _probe(self, tokens: Sequence[int]) -> None:
        """Answer one token, so that a server that cannot do it is refused before anything is measured."""
        try:
            self._complete(tokens, 1, time.perf_counter())
        except EndpointError as error:
            if self._is_vllm or error.kind not in ("http_400", "http_422"):
                raise
            self._extras = {}  # perhaps it refuses what is not OpenAI's
            self._complete(tokens, 1, time.perf_counter())

    @property
    def _given_up(self) -> bool:
        return self._failed_in_a_row >= MAX_FAILED_IN_A_ROW

    def _answer(self, prompt: Sequence[int], max_tokens: int, start: float) -> dict[str, Any]:
        """One output; a failure is a part of what is measured. Several threads do this at once."""
        try:
            if self._given_up:
                raise EndpointError(
                    "given_up", f"not asked: {self._failed_in_a_row} requests before it failed in a row"
                )
            found = self._complete(prompt, max_tokens, start)
            self._failed_in_a_row = 0
            return found
        except EndpointError as error:
            if error.kind not in ("given_up", "http_429"):  # who says that too much is asked is alive
                with self._lock:
                    self._failed_in_a_row += 1
            return {
                "token_ids": [],
                "num_forwards": None,
                "ttft_s": 0.0,
                "e2e_s": 0.0,
                "finish_reason": None,
                "error": f"{error.kind}: {error}",
            }

    def _complete(self, prompt: Sequence[int], max_tokens: int, start: float) -> dict[str, Any]:
        body = {
            "model": self._endpoint.model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extras,
        }
        if self._is_vllm:
            # Prompts come again in later passes, which must not find their own past in the prefix cache.
            body["cache_salt"] = uuid.uuid4().hex
        events = self._http.stream(f"{self._endpoint.url}/completions", body)
        with contextlib.closing(events):  # a broken answer must not keep its connection
            return read_answer(events, start, self._is_vllm, max_tokens)

    def _counters(self) -> Counters | None:
        """Counters of speculation, None where there are none to be read. Also opens a connection before the clock."""
        url = f"{self._endpoint.root}/metrics" if self._is_vllm else f"{self._endpoint.url}/models"
        try:
            text = self._http.ask("GET", url)
            return read_counters(text) if self._is_vllm else None
        except (EndpointError, ValueError):  # the requests themselves will show whether the server is well
            return None

    def _top_logprobs(self, prefix: Sequence[int]) -> dict[int, float]:
        body = {
            "model": self._endpoint.model,
            "prompt": list(prefix),
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": TOP_LOGPROBS,
            "return_tokens_as_token_ids": True,
            **self._extras,
        }
        url = f"{self._endpoint.url}/completions"
        found = self._http.ask_json("POST", url, body)
        try:
            top = found["choices"][0]["logprobs"]["top_logprobs"][0]
            return {int(token.removeprefix("token_id:")): float(value) for token, value in top.items()}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise EndpointError("malformed", f"{url} gave no log-probabilities: {json.dumps(found)[:100]}") from error
