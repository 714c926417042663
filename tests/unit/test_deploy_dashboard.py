"""deploy/dashboard.json asks Prometheus for metrics that somebody exports."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from deploy.meters import _COUNTERS as ROUTER_COUNTERS
from vllm_specplug.metrics import CountsCollector

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy" / "dashboard.json").read_text())
EXPRESSIONS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
ASKED_FOR = sorted({name for expression in EXPRESSIONS for name in re.findall(r"ray_\w+", expression)})


def exported_by_us(folder: Path) -> set[str]:
    """As Ray names them: counters end in _total, histograms have buckets."""
    found = {f"ray_specplug_router_{name}_total" for name in ROUTER_COUNTERS}
    found |= {"ray_specplug_router_in_flight", "ray_specplug_router_ttft_s_bucket"}
    for family in CountsCollector(folder).collect():
        found.add(f"ray_{family.name}" + ("_total" if family.type == "counter" else ""))
    return found


def exported_by_vllm() -> set[str]:
    """Names in vLLM's sources, which are not imported for it: its metrics come with an engine."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent / "v1"
    text = "".join((root / file).read_text() for file in ("metrics/loggers.py", "spec_decode/metrics.py"))
    names = {name.replace(":", "_") for name in re.findall(r'"(vllm:\w+)"', text)}
    return {f"ray_{name}{ending}" for name in names for ending in ("", "_total", "_bucket")}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_each_metric_is_exported(name: str, tmp_path: Path) -> None:
    assert name in (exported_by_vllm() if name.startswith("ray_vllm_") else exported_by_us(tmp_path))


def test_panels_do_not_lie_over_each_other() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]]
    assert len(set(places)) == len(places) >= 12
    assert all(panel["targets"] for panel in DASHBOARD["panels"])
