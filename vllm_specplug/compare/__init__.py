"""Compare drafters: the same prompts, one engine per arm, measured in turns.

Data goes one way: workload + arms -> engine (one child process per arm) -> measure -> lossless, statistics -> report
-> terminal, page. Only vLLM's public API is used, and only inside the children (`worker`).
"""
