"""The only package that touches vLLM's insides, and only through what `contract` has checked.

`config` (front-end process): a `specplug:` method becomes vLLM's own `SpeculativeConfig`.
`requests` (front-end and worker): the per-request limit `specplug_max_drafts`.
`runner_v1` (worker process): a `Proposer` drafts on the V1 model runner.
`sampling` (worker process): vLLM's CPU rejection sampling is tested and, where wrong, mended.
`patches`: how anything of vLLM's is wrapped.
"""
