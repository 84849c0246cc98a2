"""What mkdocs adds to the written pages: the reference, made from the code, and pages that lie outside of docs/.

Pages of docs/ name files of the repository as a reader of the repository follows them (`../reports/kept/...`). In the
site those files lie where they do in the repository, and the pages of docs/ at its root, so that `../` goes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from docs import reference  # noqa: E402 -- mkdocs loads this file by its path

ELSEWHERE = ("CONTRIBUTING.md", "CHANGELOG.md", "action.yml", "slurm/*.md", "reports/README.md", "reports/kept/*")
"""Pages, pictures and files of the repository that are shown as they are."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made and what lies elsewhere."""
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for pattern in ELSEWHERE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page with its links into the repository as the site has them."""
    return markdown.replace("](../", "](")
