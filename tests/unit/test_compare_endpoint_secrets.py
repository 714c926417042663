"""Keys and headers of an endpoint: the server gets them, nobody else sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from endpoint_cases import QUICK, SETTINGS, arm_of, spoil, workload
from endpoint_server import MODEL, Fake, no_proxy, two

from vllm_specplug.cli import main
from vllm_specplug.compare.arms import parse_arm, without_secrets
from vllm_specplug.compare.page import render_page
from vllm_specplug.compare.run import run_compare
from vllm_specplug.errors import CompareError

__all__ = ["no_proxy", "two"]  # fixtures


def test_secrets_reach_the_server_and_no_report(two: tuple[Fake, Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGING_KEY", "my-key")
    value = {"endpoint": two[1].url, "model": MODEL, "api_key_env": "STAGING_KEY", "headers": {"X-Team": "my-header"}}
    text = f"other={json.dumps(value)}"
    arms = [arm_of(two[0], "base"), parse_arm(text)]
    argv = ["specplug", "compare", "--arm", text, f"--arm={text}"]
    report = run_compare(None, arms, workload(), SETTINGS, baseline="base", argv=argv, endpoint_settings=QUICK)
    assert two[1].headers[-1]["X-Team"] == "my-header"
    assert two[1].headers[-1]["Authorization"] == "Bearer my-key"
    written = json.dumps(report) + render_page(report) + repr(arms)
    assert "my-key" not in written
    assert "my-header" not in written
    assert json.loads(json.dumps(report["arms"][1]["endpoint"])) == {
        "url": two[1].url,
        "model": MODEL,
        "api_key_env": "STAGING_KEY",
        "header_names": ["X-Team"],
    }


def test_command_writes_all_outputs_and_forgets_no_secret_in_any(
    two: tuple[Fake, Fake], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = two
    spoil(other, "text 1")
    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"prompt": "text {"1" * n}"}}\n' for n in range(4)))
    headers = {"X-Team": "my-header"}
    (tmp_path / "arms.yaml").write_text(
        f"prompts: prompts.jsonl\nbase: {{endpoint: '{base.url}', model: tiny}}\n"
        f"other: {{endpoint: '{other.url}', model: tiny, headers: {json.dumps(headers)}}}\n"
    )
    more = json.dumps({"endpoint": other.url, "model": MODEL, "headers": headers})
    files = {kind: tmp_path / f"report.{kind}" for kind in ("json", "html", "md", "xml")}
    given = ["compare", "--arms", str(tmp_path / "arms.yaml"), "--arm", f"third={more}", "--baseline", "base"]
    given += ["--max-tokens", "4", "--timeout-s", "20", "--out", str(files["json"]), "--html", str(files["html"])]
    given += ["--markdown", str(files["md"]), "--junit", str(files["xml"]), "--json"]
    assert main([*given, "--fail-if", 'other.verdict == "faster"']) == 0
    written = {kind: file.read_text() for kind, file in files.items()} | {"out": capsys.readouterr().out}
    assert not [kind for kind, text in written.items() if "my-header" in text]
    assert "2 of 8 requests failed" in written["md"]
    assert json.loads(written["out"])["results"]["other"]["errors"]["kinds"] == {"http_500": 2}
    assert len(list(tmp_path.iterdir())) == len(files) + 2  # no journal is left


def test_command_line_that_cannot_be_read_is_masked_as_a_whole() -> None:
    assert without_secrets(['a={"headers": {"X": "secret"']) == ["a=***"]
    assert without_secrets(["--arm", "a=null"]) == ["--arm", "a=null"]
    with pytest.raises(CompareError) as caught:
        parse_arm('a={"endpoint": "http://h/v1", "headers": {"X": "secret"}')
    assert "secret" not in str(caught.value)
