"""Compare drafters: the same prompts, one engine per arm, measured in turns.

Data goes one way: workload + arms -> engine (one child process per arm) -> measure -> lossless, statistics -> report
-> terminal, page. Under load, `levels` say who comes when, `load` is what `measure` is without it, and `load_results`,
`load_verdicts`, `load_report` make the report's `load`. Only vLLM's public API is used, and only inside the children
(`worker`).
"""
