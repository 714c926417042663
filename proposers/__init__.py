"""Drafting strategies that come with the plugin; they use only what `vllm_specplug.proposer` offers to everyone."""
