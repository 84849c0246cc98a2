"""A real browser over the page: Debian's Chromium, driven by selenium, and the questions that tests ask it."""

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1280, 900


def missing() -> str | None:
    """Why no browser can be started here; None where one can."""
    if not any(map(shutil.which, BROWSERS)):
        return f"no Chromium on this machine (looked for {', '.join(BROWSERS)})"
    return None if shutil.which("chromedriver") else "no chromedriver on this machine"


class Browser:
    """One page at a time in a headless Chromium."""

    def __init__(self) -> None:
        options = Options()
        options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(10)

    def open(self, path: Path, *, dark: bool = False, width: int = WIDTH) -> None:
        """Load the page afresh; the logs of the one before are forgotten."""
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        self.driver.get("about:blank")
        self.console()
        self.requests()
        self.driver.get(path.resolve().as_uri())

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def ask(self, script: str, *arguments: Any) -> Any:
        """What `script`, a function's body, returns in the page."""
        return self.driver.execute_script(script, *arguments)

    def console(self) -> list[str]:
        """What the browser has said since it was last asked: errors, and what the policy refused."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses that the page has asked for since this was last asked."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]

    def load_s(self) -> float:
        """From the start of the navigation to the end of the load event."""
        return float(self.ask("return performance.getEntriesByType('navigation')[0].loadEventEnd")) / 1000

    def first_paint_s(self) -> float | None:
        """From the start of the navigation to the first text on the screen; None where it has not come yet."""
        paints = self.ask("return performance.getEntriesByName('first-contentful-paint').map((p) => p.startTime)")
        return paints[0] / 1000 if paints else None

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self.command("Page.printToPDF", preferCSSPageSize=True)["data"])

    def hover(self, selector: str) -> str:
        """Move the pointer over the first element that matches; what the tooltip then says, empty where hidden."""
        x, y = self.driver.execute_async_script(CENTRE, selector)
        self.command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return str(self.ask("const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.innerText"))

    def low_contrasts(self, least: float = 4.5) -> Sequence[str]:
        """Texts whose contrast with what lies behind them is less than `least` (WCAG 2.2, "contrast ratio")."""
        found = self.ask(CONTRASTS)
        assert len(found) > 50, "the page has lost its text"
        return [f"{text!r}: {ratio:.2f}" for text, ratio in found if ratio < least]


CENTRE = """
const [selector, done] = arguments, element = document.querySelector(selector);
element.scrollIntoView({block: "center"});
const answer = () => {
  const box = element.getBoundingClientRect();
  done([box.left + box.width / 2, box.top + box.height / 2]);
};
requestAnimationFrame(() => requestAnimationFrame(answer));  // scrolling has then been told to the page
"""

CONTRASTS = """
document.querySelectorAll("figure, .lazy").forEach((e) => { e.style.contentVisibility = "visible"; });
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behindBox = (element) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = parse(getComputedStyle(e).backgroundColor);
    if (colour.length === 3 || colour[3] > 0.99) return colour;
  }
  return [255, 255, 255];
};
const behindMark = (text) => {  // the last shape drawn before the text that covers its middle
  const svg = text.ownerSVGElement, box = text.getBoundingClientRect();
  const x = box.left + box.width / 2, y = box.top + box.height / 2;
  const shapes = [...svg.querySelectorAll("path, rect, circle")].filter((shape) => {
    if (!(shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING)) return false;
    if (shape.closest("defs, clipPath")) return false;
    const fill = getComputedStyle(shape).fill;
    if (!fill.startsWith("rgb") || (parse(fill)[3] ?? 1) < 0.5) return false;
    const b = shape.getBoundingClientRect();
    return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom && b.width > 2 && b.height > 2;
  });
  return shapes.length ? parse(getComputedStyle(shapes.at(-1)).fill) : behindBox(svg);
};
const isHalo = (text) => {  // the outline under a text that is drawn again on top of it
  if (getComputedStyle(text).stroke === "none") return false;
  const box = text.getBoundingClientRect();
  return [...text.ownerSVGElement.querySelectorAll("text")].some((other) => {
    if (other.textContent !== text.textContent) return false;
    if (!(text.compareDocumentPosition(other) & Node.DOCUMENT_POSITION_FOLLOWING)) return false;
    const b = other.getBoundingClientRect();
    return Math.abs(b.left - box.left) < 4 && Math.abs(b.top - box.top) < 4;
  });
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
  if (!text || !element.checkVisibility() || element.closest("script, style, title, desc, #tip")) continue;
  const isSvg = element instanceof SVGElement;
  const style = getComputedStyle(element), own = isSvg ? style.fill : style.color;
  if (!own.startsWith("rgb") || (isSvg && isHalo(element))) continue;
  const behind = isSvg ? behindMark(element) : behindBox(element);
  const [low, high] = [luminance(parse(own)), luminance(behind)].sort((p, q) => p - q);
  found.push([text.slice(0, 60), (high + 0.05) / (low + 0.05)]);
}
return found;
"""
