"""What a small-model draft cannot be is refused in the front-end, in one line; what it may be is served."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import DRAFT, LOOKUP, MakeEngine, loop_prompt, said
from models import tiny_llama
from tiny_draft import renumbered, tiny_draft
from vllm import SamplingParams, envs
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.spec_decode import draft_model as vllms
from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

from vllm_specplug.bridge.config import proposer_spec
from vllm_specplug.errors import ConfigError, ContractError, OptionsError
from vllm_specplug.options import ProposerSpec

PROMPTS = [loop_prompt(start, 8 + start, 90) for start in range(8)]
GREEDY = SamplingParams(temperature=0, max_tokens=60, detokenize=False, ignore_eos=True)


def configure(target: str, draft: str, changes: dict[str, Any] | None = None, **arguments: Any) -> Any:
    """What `LLM` and `vllm serve` do before they load anything."""
    config = {"method": DRAFT, "model": draft, "num_speculative_tokens": 4, **(changes or {})}
    settings = {"dtype": "float32", "max_model_len": 256, "skip_tokenizer_init": True, "enforce_eager": True}
    return EngineArgs(model=target, speculative_config=config, **{**settings, **arguments}).create_engine_config()


def refusal(*args: Any, error: type[Exception] = ConfigError, **arguments: Any) -> str:
    with pytest.raises(error) as caught:
        configure(*args, **arguments)
    text = str(caught.value)
    assert "\n" not in text
    return text


def lists(folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    texts = {
        "nowhere": None,
        "no_json": "1, 2",
        "empty": "[]",
        "no_ids": '["a"]',
        "no_list": '{"ids": [1]}',
        "beyond": "[3, 32]",
        "negative": "[-1, 3]",
        "true": "[true, 3]",
    }
    for name, text in texts.items():
        if text is not None:
            (folder / name).write_text(text)
    return {name: str(folder / name) for name in texts}


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nowhere", "cannot be read ([Errno 2] No such file or directory: '{path}'); give a JSON list of token ids"),
        ("no_json", "cannot be read (Extra data: line 1 column 2 (char 1)); give a JSON list of token ids"),
        ("empty", "should be a JSON list of token ids, and not empty"),
        ("no_ids", "should be a JSON list of token ids, and not empty"),
        ("no_list", "should be a JSON list of token ids, and not empty"),
        ("true", "should be a JSON list of token ids, and not empty"),
        ("beyond", "holds token 32, but 0 to 31 can be drafted; make the list for this target"),
        ("negative", "holds token -1, but 0 to 31 can be drafted; make the list for this target"),
    ],
)
def test_a_list_of_tokens_that_cannot_be_used_is_refused(tiny: str, tmp_path: Path, name: str, what: str) -> None:
    path = lists(tmp_path)[name]
    wanted = f"proposer 'draft_model': draft_vocab {path} {what.format(path=path)}"
    assert refusal(tiny, tiny, {"draft_vocab": path}) == wanted


def test_a_bad_list_stored_with_the_draft_is_refused_unless_it_is_not_used(tiny: str, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "draft")
    (tmp_path / "draft" / "draft_vocab.json").write_text("[77]")
    assert "holds token 77, but 0 to 31 can be drafted" in refusal(tiny, str(tmp_path / "draft"))
    assert configure(tiny, str(tmp_path / "draft"), {"draft_vocab": "all"})


def test_a_list_beyond_a_smaller_drafts_tokens_is_refused(tiny_text: str, tmp_path: Path) -> None:
    """The target has such a token, the draft has no output for it."""
    target = tiny_draft(tiny_text, 0.0, vocab_size=256, loud=0.0)
    (tmp_path / "list.json").write_text("[3, 200]")
    text = refusal(target, tiny_text, {"draft_vocab": str(tmp_path / "list.json")}, skip_tokenizer_init=False)
    assert "200" in text
    assert "127" in text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"min_confidence": 1.0}, "proposer 'draft_model': option min_confidence is 1.0: Input should be less than 1"),
        ({"min_confidence": -0.1}, "proposer 'draft_model': option min_confidence is -0.1: Input should be greater"),
        ({"draft_sample_method": "best"}, "option draft_sample_method is 'best': Input should be 'greedy' or 'proba"),
        ({"draft_vocabulary": "all"}, "proposer 'draft_model' has no option 'draft_vocabulary'; it takes: "),
        ({"draft_vocabulary": "all"}, "Did you mean 'draft_vocab'?"),
        ({"parallel_drafting": True}, "has no option 'parallel_drafting'"),
        ({"draft_vocab": ""}, "option draft_vocab is '': "),
        ({"max_model_len": 0}, "option max_model_len is 0: "),
        ({"model": ""}, "option model is '': "),
        (
            {"use_heterogeneous_vocab": True, "draft_sample_method": "probabilistic"},
            "proposer 'draft_model': use_heterogeneous_vocab drafts greedily only; leave draft_sample_method out or "
            "set it to 'greedy'",
        ),
        (
            {"use_heterogeneous_vocab": True, "draft_vocab": "list.json"},
            "proposer 'draft_model': draft_vocab lists tokens of the target, so it cannot be used with "
            "use_heterogeneous_vocab",
        ),
    ],
    ids=str,
)
def test_a_bad_option_is_refused(tiny: str, changes: dict[str, Any], text: str) -> None:
    assert text in refusal(tiny, tiny, changes, error=OptionsError)


def test_a_model_is_asked_for(tiny: str) -> None:
    with pytest.raises(OptionsError, match=r"proposer 'draft_model': option model is .*Field required"):
        EngineArgs(
            model=tiny, speculative_config={"method": DRAFT, "num_speculative_tokens": 4}, skip_tokenizer_init=True
        ).create_engine_config()


def test_a_folder_without_a_model_is_refused(tiny: str, tmp_path: Path) -> None:
    assert refusal(tiny, str(tmp_path)) == (
        f"proposer 'draft_model': model {str(tmp_path)!r} has no config.json; name the directory of a model"
    )
    missing = str(tmp_path / "missing")
    text = refusal(tiny, missing)
    assert text.startswith(f"proposer 'draft_model': vLLM refuses model {missing!r}: ")
    assert "validation error" not in text
    remedy = "name the directory of a model that this vLLM serves, or a name on a hub that can be reached"
    assert text.endswith(f"; {remedy}")


def test_a_limit_above_the_drafts_own_is_refused_by_both_numbers(tiny: str) -> None:
    draft = tiny_draft(tiny, 0.0, max_position_embeddings=96)
    text = refusal(tiny, draft, {"max_model_len": 128})
    assert "128" in text
    assert "96" in text
    assert configure(tiny, draft, {"max_model_len": 96})
    assert "300" in refusal(tiny, tiny, {"max_model_len": 300})  # the target's limit is 256
    assert "validation error" not in text


@pytest.mark.parametrize(("asked", "ranks"), [(2, 1), (1, 2)])
def test_a_draft_on_other_ranks_than_the_target_is_refused(tiny: str, asked: int, ranks: int) -> None:
    """vLLM says so in the worker, for one of them."""
    text = refusal(tiny, tiny, {"draft_tensor_parallel_size": asked}, tensor_parallel_size=ranks)
    assert text == (
        f"proposer 'draft_model': draft_tensor_parallel_size is {asked}, but tensor_parallel_size is {ranks}; leave "
        "draft_tensor_parallel_size out"
    )


def test_lora_is_refused(tiny: str) -> None:
    assert refusal(tiny, tiny, enable_lora=True) == (
        "proposer 'draft_model' together with LoRA is not tested yet, so not supported; leave --enable-lora out"
    )


def test_v2_runner_forced_is_refused(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There vLLM's own draft would run in our place, and nobody would notice."""
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", True, raising=False)
    with pytest.raises(ValueError, match=r"V2"):
        configure(tiny, tiny)
    monkeypatch.setattr(envs, "VLLM_USE_V2_MODEL_RUNNER", False, raising=False)
    assert not configure(tiny, tiny).use_v2_model_runner


@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (SpecDecodeBaseProposer, "prepare_inputs", r"DraftModelProposer\.prepare_inputs is missing"),
        (vllms, "DraftModelProposer", r"vllm\.v1\.spec_decode\.draft_model:DraftModelProposer\.__init__ is missing"),
    ],
)
def test_a_renamed_symbol_of_vllms_draft_costs_this_proposer_alone(
    tiny: str, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, said: str
) -> None:
    monkeypatch.delattr(owner, name)
    with pytest.raises(ContractError, match=said):
        configure(tiny, tiny)
    settings = {"dtype": "float32", "max_model_len": 64, "skip_tokenizer_init": True}
    lookup = {"method": LOOKUP, "num_speculative_tokens": 4}
    config = EngineArgs(model=tiny, speculative_config=lookup, **settings).create_engine_config()
    assert proposer_spec(config.speculative_config) is not None


def test_configuration_survives_the_way_to_another_process(tiny: str) -> None:
    config = configure(tiny, tiny_draft(tiny), {"min_confidence": 0.25})
    again = pickle.loads(pickle.dumps(config)).speculative_config
    spec = proposer_spec(again)
    assert isinstance(spec, ProposerSpec)
    assert spec == proposer_spec(config.speculative_config)
    assert (again.method, again.draft_model_config.model) == ("draft_model", tiny_draft(tiny))


def test_vllms_own_draft_model_passes_through_untouched(tiny: str) -> None:
    config = configure(tiny, tiny_draft(tiny), {"method": "draft_model"})
    assert type(config.speculative_config).__name__ == "SpeculativeConfig"
    assert proposer_spec(config.speculative_config) is None


# Vocabularies.


def test_rows_of_padding_cost_no_acceptance(make_engine: MakeEngine, tiny_text: str) -> None:
    """vllm#5203. Loud rows: would a draft with more of them draft one, it would be wrong."""
    expected = make_engine(model=tiny_text).generate(PROMPTS, GREEDY)
    more = tiny_draft(tiny_text, 0.0, vocab_size=256, loud=4.0)
    engine = make_engine({"method": DRAFT, "num_speculative_tokens": 4, "model": more}, model=tiny_text)
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    counts = engine.new_counts()
    assert (counts.num_rejected_tokens, counts.num_accepted_tokens >= 300) == (0, True)
    padded_target = tiny_draft(tiny_text, 0.0, vocab_size=256, loud=0.0)
    engine = make_engine({"method": DRAFT, "num_speculative_tokens": 4, "model": tiny_text}, model=padded_target)
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    counts = engine.new_counts()
    assert (counts.num_rejected_tokens, counts.num_accepted_tokens >= 300) == (0, True)


def test_tokens_that_the_draft_does_not_know_end_nothing(make_engine: MakeEngine, tiny_text: str) -> None:
    """A target that says tokens beyond the draft's table of embeddings, and is asked with some."""
    target = tiny_draft(tiny_text, 0.0, vocab_size=256, loud=1.0)
    prompts = [[*prompt, 255 - number] for number, prompt in enumerate(PROMPTS)]
    expected = make_engine(model=target).generate(prompts, GREEDY)
    assert sum(token >= 128 for one in expected for token in one.outputs[0].token_ids) >= 20
    engine = make_engine({"method": DRAFT, "num_speculative_tokens": 4, "model": tiny_text}, model=target)
    assert said(engine.generate(prompts, GREEDY)) == said(expected)
    engine.new_counts().assert_enough(accepted=10)
    assert engine.count("failures") == 0


def spoilt(model: str, folder: Path, change: Callable[[dict[str, int]], None]) -> str:
    """The same model, its tokenizer changed."""
    shutil.copytree(model, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    change(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)


def test_another_tokenizer_is_refused_by_both_sizes(tiny_text: str, models_folder: Path, tmp_path: Path) -> None:
    def swap(vocabulary: dict[str, int]) -> None:
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]

    remedy = "choose a draft of the target's family, or set use_heterogeneous_vocab"
    draft = spoilt(tiny_text, tmp_path / "swapped", swap)
    assert refusal(tiny_text, draft, skip_tokenizer_init=False) == (
        f"proposer 'draft_model': {draft} has 128 tokens, the target 128, and their tokenizers differ in 2 of 128 "
        f"tokens, so its drafts would mean something else; {remedy}"
    )
    draft = str(tiny_llama(models_folder / "small-text", vocab_size=120, with_tokenizer=True))
    assert refusal(tiny_text, draft, skip_tokenizer_init=False) == (
        f"proposer 'draft_model': {draft} has 120 tokens, the target 128, and their tokenizers differ in 8 of 128 "
        f"tokens, so its drafts would mean something else; {remedy}"
    )


def test_sizes_decide_where_a_tokenizer_is_missing(tiny: str, tiny_text: str) -> None:
    remedy = "choose a draft of the target's family, or set use_heterogeneous_vocab"
    assert configure(tiny_text, tiny_draft(tiny_text, with_tokenizer=False), skip_tokenizer_init=False)
    draft = tiny_draft(tiny, 0.0, vocab_size=40)
    assert refusal(tiny, draft) == (
        f"proposer 'draft_model': {draft} has 40 tokens, the target 32, and it brings no tokenizer to tell whether "
        f"only padding differs; put the tokenizer beside it, {remedy}"
    )
    text = refusal(tiny, tiny_text)  # here the target has none
    assert text.startswith(f"proposer 'draft_model': {tiny_text} has 128 tokens, the target 32, and ")


@pytest.mark.parametrize("extra", [0, 8])
def test_a_draft_that_numbers_the_same_tokens_otherwise_is_as_good(
    make_engine: MakeEngine, tiny_text: str, models_folder: Path, extra: int
) -> None:
    draft = renumbered(tiny_text, models_folder / f"renumbered-{extra}", shift=7, extra=extra)
    expected = make_engine(model=tiny_text).generate(PROMPTS, GREEDY)
    assert "tokenizers differ in 128 of 128 tokens" in refusal(tiny_text, draft, skip_tokenizer_init=False)
    config = {"method": DRAFT, "num_speculative_tokens": 4, "model": draft, "use_heterogeneous_vocab": True}
    engine = make_engine(config, model=tiny_text)
    assert said(engine.generate(PROMPTS, GREEDY)) == said(expected)
    counts = engine.new_counts()
    assert counts.num_accepted_tokens >= 0.9 * counts.num_draft_tokens >= 200
    assert engine.count("failures") == 0
