"""The router between arms: Ray's OpenAI ingress, with a choice of arm in front of each request.

    clients ask for MODEL        ──▶ an arm by weight; the same one for a session or user, as long as weights stand
    or for MODEL--ARM            ──▶ that arm
    or send X-Specplug-Arm: ARM  ──▶ that arm

Knows how a request goes. How its arm is chosen is in `routing`, how an arm is asked in `arm`, what is kept in `record`.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import DetokenizeRequest, ModelCard, TokenizeRequest
from ray.serve.handle import DeploymentHandle
from ray.serve.llm.ingress import OpenAiIngress
from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest
from starlette.responses import JSONResponse, Response
from vllm.exceptions import VLLMValidationError

from deploy import failures, sse
from deploy.arm import Arm
from deploy.dispatch import Dispatch
from deploy.exposure import ExposureWriter
from deploy.inquiry import Inquiry, read_inquiry, refuse_half_characters
from deploy.meters import Meters
from deploy.relay import Relay
from deploy.router_app import build_app
from deploy.router_settings import RouterSettings
from deploy.routing import Routing
from deploy.settings import read
from deploy.shadow import ShadowTraffic
from vllm_specplug.errors import DeployError

logger = logging.getLogger(__name__)


class ArmRouter(OpenAiIngress):
    """The ingress of a deployment with arms; Serve makes it, one in each router replica."""

    def __init__(
        self,
        llm_deployments: dict[str, DeploymentHandle[Any]],
        model_cards: dict[str, ModelCard],
        *,
        settings: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        """As `ray.serve.llm.build_openai_app` calls it, with `RouterSettings` as a dictionary.

        Raises:
            DeployError: the settings are wrong, or do not go with the deployments.
        """
        super().__init__(llm_deployments, model_cards, **kwargs)
        self._settings = read(RouterSettings, settings, "the router's settings")
        limits, arms = self._settings.limits, self._settings.arms
        if set(llm_deployments) != {self._settings.full_name(arm) for arm in arms}:
            raise DeployError(f"the router is set up for arms {', '.join(arms)}; found {', '.join(llm_deployments)}")
        self._key = self._settings.secret("api_key_env")
        unit_secret = self._settings.secret("unit_key_env") or str(self._settings.seed)
        self._unit_key = hashlib.blake2b(unit_secret.encode()).digest()
        self._id = serve.get_replica_context().replica_id.unique_id
        self._meters = Meters(arms)
        self._arms = {
            arm: Arm(arm, model, llm_deployments[model], limits, self._meters)
            for arm, model in ((arm, self._settings.full_name(arm)) for arm in arms)
        }
        self._cards = dict(model_cards)
        self._routing = Routing(self._settings, self._arms)
        self._has_weights = False
        self._weights_error: str | None = None
        self._log = None if self._settings.exposure is None else ExposureWriter(self._settings.exposure, self._id)
        self._dispatch = Dispatch(
            self._settings, self._routing, self._meters, self._log, self._id, self._shadow_traffic()
        )

    async def __serve_build_asgi_app__(self) -> FastAPI:
        """The application that Serve is to run instead of the stock one."""
        endpoints: dict[str, Callable[..., Awaitable[Any]]] = {
            "models": self.models,
            "model_data": self.model_data,
            "chat": self.chat,
            "completions": self.completions,
            "tokenize": self.tokenize,
            "detokenize": self.detokenize,
        }
        has_admin = self._settings.admin or self._key is not None
        return build_app(
            endpoints,
            key=self._key,
            lifespan=self._lifespan,
            admin=self.describe if has_admin else None,
            refusals=[VLLMValidationError],
        )

    @asynccontextmanager
    async def _lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        watches = [asyncio.create_task(arm.watch(), context=contextvars.Context()) for arm in self._arms.values()]
        yield
        for watch in watches:
            watch.cancel()
        if self._log is not None:
            await asyncio.to_thread(self._log.close)

    async def reconfigure(self, user_config: Any) -> None:
        """Take `{"weights": {ARM: WEIGHT}}`; Serve calls this at the start and whenever it changes.

        Weights that are wrong leave the old ones in force, with an error in the log and on the route for operators:
        Serve would end a router that raises. A router that starts with wrong ones has no old ones, and raises.

        Raises:
            DeployError: the router has no weights yet, and these are wrong.
        """
        try:
            if not isinstance(user_config, Mapping) or set(user_config) != {"weights"}:
                raise DeployError(f"user_config: expected {{'weights': {{ARM: WEIGHT}}}}; found {user_config!r}")
            self._routing.set_weights(user_config["weights"])
        except DeployError as error:
            if not self._has_weights:
                raise
            self._weights_error = str(error)
            logger.error("%s; the old weights stay: %s", error, self._routing.weights)
            return
        self._has_weights = True
        self._weights_error = None
        logger.info("weights: %s", self._routing.weights)

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Response:
        """OpenAI's chat completions."""
        return await self._generate("chat", body, request)

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """OpenAI's completions."""
        return await self._generate("completions", body, request)

    async def tokenize(self, body: TokenizeRequest, request: Request) -> Response:
        """vLLM's /tokenize, of a text or a conversation."""
        return await self._ask_any("tokenize", body, request)

    async def detokenize(self, body: DetokenizeRequest, request: Request) -> Response:
        """vLLM's /detokenize."""
        return await self._ask_any("detokenize", body, request)

    async def models(self) -> Response:
        """The model, and each arm under its full name."""
        cards = [self._card(name) for name in self._routing.models]
        return JSONResponse({"object": "list", "data": cards})

    async def model_data(self, model: str) -> Response:
        """One of them."""
        if model not in self._routing.models:
            raise failures.unknown_model(model, self._routing.models)
        return JSONResponse(self._card(model))

    def describe(self) -> dict[str, Any]:
        """Weights, health and counts, for operators."""
        return {
            "schema": "specplug.arms/1",
            "model": self._settings.model,
            "router": self._id,
            "weights": self._routing.weights,
            "weights_error": self._weights_error,
            "arms": {name: arm.health.describe() | self._meters.of(name) for name, arm in self._arms.items()},
            "exposure_log": self._log and {"num_written": self._log.num_written, "num_dropped": self._log.num_dropped},
        }

    async def _generate(self, call: str, body: Any, request: Request) -> Response:
        inquiry = await self._inquiry(call, body, request)
        record = self._dispatch.record(inquiry)
        try:
            arm, answer = await self._dispatch.answer(inquiry, record)
        except failures.RequestError as failure:
            record.ended(failure.status, failure.reason)
            return failure.response(self._served_by(record.arm))
        except BaseException as error:
            if isinstance(error, Exception):
                record.ended(500, "internal_error")
            record.cancelled()
            raise
        headers = self._served_by(arm.name)
        if inquiry.is_stream:
            record.first_chunk()
            limit_s = self._settings.limits.chunk_timeout_s
            return Relay(arm, answer, record, headers, limit_s, has_usage=inquiry.wants_usage)
        answer.close(cancel=False)
        record.used(sse.usage_of_object(answer.first))
        record.ended(200)
        return Response(sse.json_of(answer.first), headers=headers, media_type="application/json")

    async def _ask_any(self, call: str, body: Any, request: Request) -> Response:
        """Have some arm do what all do alike; nothing is kept of it."""
        inquiry = await self._inquiry(call, body, request)
        arm = self._routing.choose(inquiry.target)
        timeout_s = self._settings.limits.first_byte_timeout_s
        answer = await arm.ask(call, inquiry.body_for(arm, inquiry.id), inquiry.raw_request, None, timeout_s)
        answer.close(cancel=False)
        return Response(sse.json_of(answer.first), headers=self._served_by(arm.name), media_type="application/json")

    def _shadow_traffic(self) -> ShadowTraffic | None:
        shadow, limits = self._settings.shadow, self._settings.limits
        if shadow is None:
            return None
        return ShadowTraffic(shadow, self._arms[shadow.arm], self._settings.seed, limits, self._meters)

    async def _inquiry(self, call: str, body: Any, request: Request) -> Inquiry:
        await refuse_half_characters(request)
        return read_inquiry(call, body, request, self._settings, self._routing, self._unit_key)

    def _served_by(self, arm: str) -> dict[str, str]:
        return {self._settings.arm_header: arm} if arm else {}

    def _card(self, name: str) -> dict[str, Any]:
        """The entry of a model in the list of them; the one that clients ask for has its first arm's."""
        card = self._cards.get(name) or self._cards[self._settings.full_name(self._settings.arms[0])]
        return {**card.model_dump(), "id": name}
