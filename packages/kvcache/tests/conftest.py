"""Makes the reference implementations beside the tests importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser):
    parser.addoption(
        "--kvcache-sequences",
        type=int,
        default=1_000,
        help="number of random operation sequences that drive llm_kvcache against its reference model",
    )
