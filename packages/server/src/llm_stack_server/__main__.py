"""``python -m llm_stack_server``: the command line."""

import sys

from llm_stack_server.cli import main

sys.exit(main())
