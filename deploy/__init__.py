"""Where the Ray Serve launcher will live: an application with a router between arms. Not built yet."""
