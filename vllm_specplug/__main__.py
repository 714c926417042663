"""`python -m vllm_specplug`: the same as `specplug`."""

import sys

from vllm_specplug.cli import main

if __name__ == "__main__":
    sys.exit(main())
