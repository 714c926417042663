"""The only package that touches vLLM's insides, and only through what `contract` has checked.

Front-end process: `config` makes vLLM's own `SpeculativeConfig` of a `specplug:` method, `runner_choice` finds the
model runner for it, `requests` checks the per-request limit `specplug_max_drafts`, `launch` is `specplug serve`.
Worker processes: `drafter` asks one `Proposer`, on the V1 model runner through `runner_v1`, on V2 through `runner_v2`;
`draft_model` and `draft_model_v2` run a second model for it; `sampling` tries vLLM's rejection sampling and mends it.
Everywhere: `patches` wraps what is vLLM's, `versions` knows what differs between its releases, `distribution` which
package it came in.
"""
