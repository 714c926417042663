"""Medusa heads: the network, its checkpoint formats and the conversion between them. Knows nothing of vLLM."""
