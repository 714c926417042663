"""What the choice of an arm costs a request: asked for the model, against asked for one arm by its full name.

    python benchmarks/router_overhead.py --json     # minutes; a local Ray cluster on loopback

Arms without a model answer at once, so nothing but the way through Serve is timed: each request goes client, proxy,
router, arm and back. `stock` is Ray's own OpenAI ingress in front of the same arms, for what the router costs beyond
the choice. The ways take turns, one request at a time, in a new order each turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "deploy")]

import router_cluster  # noqa: E402  (the stub arms of the tests)

WAYS = {
    "model": ("", router_cluster.MODEL),
    "full_name": ("", f"{router_cluster.MODEL}--a"),
    "full_name_again": ("", f"{router_cluster.MODEL}--a"),  # how much of a difference is noise
    "stock": ("/stock", f"{router_cluster.MODEL}--a"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=400, metavar="N", help="of each way, streamed and not")
    parser.add_argument("--tokens", type=int, default=16, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON line last")
    args = parser.parse_args()
    with router_cluster.ray_cluster() as url, tempfile.TemporaryDirectory() as log:
        _start(Path(log))
        rows = [row for stream in (False, True) for row in _rows(url, stream, args.requests, args.tokens)]
    for row in rows:
        first = f"first chunk {row['ttft_ms']:6.2f} ms, " if row["stream"] else ""
        print(
            f"{'stream' if row['stream'] else 'whole ':6} {row['way']:16} {first}all {row['e2e_ms']:6.2f} ms (median)"
        )
    if args.json:
        print(json.dumps({"rows": rows}))


def _start(log: Path) -> None:
    from ray import serve
    from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress

    settings = {"arms": ["a", "b"], "exposure": {"directory": str(log)}}
    router = router_cluster.build({"settings": settings, "step_s": 0.0, "replicas": {}})
    serve.run(router, name="router", route_prefix="/")
    arms, cards = router_cluster.arms_and_cards(["a"], 0.0, {})
    stock = serve.deployment(make_fastapi_ingress(OpenAiIngress), ray_actor_options={"num_cpus": 0})
    serve.run(stock.bind(llm_deployments=arms, model_cards=cards), name="stock", route_prefix="/stock")


def _rows(url: str, stream: bool, num_requests: int, num_tokens: int) -> list[dict[str, Any]]:
    times: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    shuffled = random.Random(0)
    with httpx.Client(timeout=60, headers=router_cluster.AUTHORIZED) as client:
        for turn in range(num_requests + 20):
            for way in shuffled.sample(list(WAYS), len(WAYS)):
                prefix, model = WAYS[way]
                body = router_cluster.chat_body(model=model, stream=stream, max_tokens=num_tokens)
                found = _timed(client, f"{url}{prefix}/v1/chat/completions", body)
                if turn >= 20:  # the first ones warm up
                    times[way].append(found)
    return [_row(way, stream, found) for way, found in times.items()]


def _timed(client: httpx.Client, url: str, body: dict[str, Any]) -> tuple[float, float]:
    began = time.perf_counter()
    with client.stream("POST", url, json=body) as response:
        parts = response.iter_bytes()
        next(parts)
        first = time.perf_counter()
        for _ in parts:
            pass
    assert response.status_code == 200, response.status_code
    return 1e3 * (first - began), 1e3 * (time.perf_counter() - began)


def _row(way: str, stream: bool, times: list[tuple[float, float]]) -> dict[str, Any]:
    first, whole = zip(*times, strict=True)
    return {
        "way": way,
        "stream": stream,
        "num_requests": len(times),
        "ttft_ms": statistics.median(first) if stream else None,
        "e2e_ms": statistics.median(whole),
    }


if __name__ == "__main__":
    main()
