"""The pages as mkdocs builds them: every link leads somewhere, and the site fetches nothing."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.imports import ROOT

NEEDED = (
    "docs",
    "mkdocs.yml",
    "action.yml",
    "reports/kept",
    "reports/README.md",
    "slurm",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    return folder


def test_the_site_has_the_written_the_made_and_the_kept_pages(site: Path) -> None:
    for page in ("findings", "reference/commands", "slurm/CLUSTER", "reports"):
        assert (site / page / "index.html").is_file()


def test_the_picture_of_a_page_is_shown(site: Path) -> None:
    [name] = re.findall(
        r'<img[^>]*src="([^"]*errand-figure1-1440[^"]*)"', (site / "index.html").read_text(encoding="utf-8")
    )
    assert (site / name).is_file()


def test_no_page_fetches_anything(site: Path) -> None:
    fetched = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:)?//[^"]*"')
    kept = site / "reports" / "kept"
    pages = [page for page in site.rglob("*.html") if not page.is_relative_to(kept)]
    assert [page for page in pages if fetched.search(page.read_text(encoding="utf-8"))] == []


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    for name in NEEDED:
        target = tmp_path / "root" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    page = tmp_path / "root" / "docs" / "choose.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[gone](no-such-page.md)\n", encoding="utf-8")
    built = build(tmp_path / "root", tmp_path / "site")
    assert built.returncode != 0
    assert "no-such-page.md" in built.stderr
