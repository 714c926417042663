"""Arms of one model on Ray Serve, with a router between them: `python -m deploy`, docs/deploy.md.

staging file ──▶ staging ──▶ rendering ──▶ a Serve configuration, whose import path is `application:build`
there:           application ──▶ a `server` for each arm, `router` in front of them
"""
