"""What differs between vLLM's releases, where it can be tried without them; `make test-versions` tries the rest."""

from __future__ import annotations

from types import SimpleNamespace

from vllm_specplug.bridge import versions


def test_a_cpu_function_is_launched_by_the_names_of_the_kernel_it_replaces() -> None:
    def expand_kernel(output_ptr, input_ptr, replace_from, MAX_NUM_TOKENS): ...

    def expand(output, input_val, replace_from, most):
        return (output, input_val, replace_from, most)

    kernel = versions._CpuKernel(expand_kernel, expand)
    assert kernel.arg_names == ["output_ptr", "input_ptr", "replace_from", "MAX_NUM_TOKENS"]
    assert kernel[(3,)](MAX_NUM_TOKENS=4, replace_from=3, output_ptr=1, input_ptr=2) == (1, 2, 3, 4)


def test_lengths_on_the_host_are_forgotten_where_there_are_any() -> None:
    old = SimpleNamespace(_seq_lens_cpu=[1], _num_computed_tokens_cpu=[0], seq_lens=[1])
    versions.forget_lengths_on_host(old)
    assert vars(old) == {"_seq_lens_cpu": None, "_num_computed_tokens_cpu": None, "seq_lens": [1]}
    new = SimpleNamespace(seq_lens=[1])
    versions.forget_lengths_on_host(new)
    assert vars(new) == {"seq_lens": [1]}
