"""The page in a real browser: wide and narrow, light and dark, nothing cut off, nothing unreadable."""

import json
import shutil
from html import escape, unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from sts_eval.report.build import write_report
from tests import processes

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: install the package chromium"),
]
WIDTHS = (360, 768, 1280)
SCHEMES = {"dark": 0, "light": 1}  # Blink's numbers

PROBE = """
<script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, view = frame.contentWindow;
    page.querySelectorAll("details").forEach(fold => fold.open = true);
    const colour = (selector, name) => view.getComputedStyle(page.querySelector(selector))[name];
    const cut = [], tiny = [];
    page.querySelectorAll("svg text").forEach(text => {
      const box = text.getBoundingClientRect(), room = text.ownerSVGElement.getBoundingClientRect();
      const scale = room.width / text.ownerSVGElement.viewBox.baseVal.width;
      const sideways = box.left < room.left - 1 || box.right > room.right + 1;
      if (sideways || box.top < room.top - 1 || box.bottom > room.bottom + 1) cut.push(text.textContent);
      if (parseFloat(view.getComputedStyle(text).fontSize) * scale < 8) tiny.push(text.textContent);
    });
    const overlaps = [];
    page.querySelectorAll("svg").forEach(svg => {
      const labels = [...svg.querySelectorAll("text.tick, text.label, text.value")];
      labels.forEach((a, i) => labels.slice(i + 1).forEach(b => {
        const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
        const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (wide > 1 && high > 3) overlaps.push(a.textContent + " / " + b.textContent);
      }));
    });
    return {
      width: frame.clientWidth, scrolls: page.documentElement.scrollWidth, charts: page.querySelectorAll("svg").length,
      cut, tiny, overlaps, paper: colour("body", "backgroundColor"), ink: colour("body", "color"),
      card: colour("section", "backgroundColor"), quiet: colour("svg .tick", "fill"),
      scheme: view.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light",
    };
  });
  document.body.innerHTML = "<pre></pre>";
  document.querySelector("pre").textContent = JSON.stringify(found);
});
</script>
"""


def run_browser(page: Path, scheme: str, *arguments: str) -> str:
    assert BROWSER is not None
    profile = page.parent / "profile"
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={profile}",
    ]
    command += [f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", *arguments, page.as_uri()]
    done = processes.run(command, seconds=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measure(html: str, folder: Path, scheme: str) -> list[dict[str, Any]]:
    """What the browser says about the page at each width; frames, since its own window cannot be narrow."""
    frames = "".join(
        f'<iframe srcdoc="{escape(html)}" style="width:{w}px;height:900px;border:0"></iframe>' for w in WIDTHS
    )
    page = folder / "probe.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><body style="width:2600px">{frames}{PROBE}')
    dom = run_browser(page, scheme, "--dump-dom")
    found: list[dict[str, Any]] = json.loads(unescape(dom.split("<pre>")[1].split("</pre>")[0]))
    return found


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, by WCAG."""
    channels = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_every_width_and_its_text_is_whole_and_readable(
    family: Path, tmp_path: Path, scheme: str
) -> None:
    html = write_report([family], tmp_path / "out")[1].read_text()
    found = measure(html, tmp_path, scheme)
    assert [page["width"] for page in found] == list(WIDTHS)
    for page in found:
        assert page["scheme"] == scheme
        assert page["scrolls"] <= page["width"], "the page itself scrolls sideways"
        assert page["charts"] >= 7
        assert page["cut"] == []
        assert page["tiny"] == []
        assert page["overlaps"] == []
        for colour in ("ink", "quiet"):
            for ground in ("paper", "card"):
                assert contrast(page[colour], page[ground]) >= 4.5  # WCAG AA
        assert (luminance(page["paper"]) > 0.5) == (scheme == "light")


def test_the_plane_fits_every_width(sweep: Path, tmp_path: Path) -> None:
    html = write_report([sweep], tmp_path / "out")[1].read_text()
    for page in measure(html, tmp_path, "light"):
        assert page["scrolls"] <= page["width"]
        assert page["charts"] == 1
        assert page["cut"] == []
        assert page["overlaps"] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screenshot_shows_the_page_in_its_scheme(family: Path, tmp_path: Path, scheme: str) -> None:
    page, picture = write_report([family], tmp_path / "out")[1], tmp_path / "page.png"
    run_browser(page, scheme, "--window-size=1280,3000", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("RGB"))
    assert pixels.shape == (3000, 1280, 3)
    assert len(np.unique(pixels[::5, ::5].reshape(-1, 3), axis=0)) > 100
    assert (np.median(pixels) > 128) == (scheme == "light")
