"""Pictures of pages for docs/errands.md: 1440 and 400 pixels wide, light and dark, in tests' Chromium.

python docs/pictures.py figure1=reports/figure1_20260101-120000/report.html ...
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.report.documents.page.browser import Browser  # noqa: E402 -- the checkout is no package

HEIGHT = 1000


def main() -> None:
    """Write images/errand-NAME-WIDTH[-dark].webp for each NAME=PAGE."""
    browser = Browser()
    for name, _, page in (pair.partition("=") for pair in sys.argv[1:]):
        for width in (1440, 400):
            for dark in (False, True):
                browser.open(Path(page), width=width, dark=dark)
                size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
                browser.command("Emulation.setDeviceMetricsOverride", **size)
                picture = browser.command("Page.captureScreenshot", format="webp", quality=60)["data"]
                path = ROOT / "docs" / "images" / f"errand-{name}-{width}{'-dark' if dark else ''}.webp"
                path.write_bytes(base64.b64decode(picture))
    browser.driver.quit()


if __name__ == "__main__":
    main()
