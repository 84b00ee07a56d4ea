"""``python -m llm_stack_server.config.document_options FILE``: writes the table of options into a page."""

from __future__ import annotations

import sys
from pathlib import Path

from llm_stack_server.config.example import markdown_table
from llm_stack_server.config.options import all_options

BEGIN = "<!-- options -->\n"
END = "<!-- end of options -->"


def main(path: Path) -> None:
    """Replace what stands between the marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    table = markdown_table(all_options().values())
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
