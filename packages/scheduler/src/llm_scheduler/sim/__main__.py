"""Lets ``python -m llm_scheduler.sim`` do what ``llm-sim`` does."""

import sys

from llm_scheduler.sim.cli import main

sys.exit(main())
