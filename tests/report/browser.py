"""A headless Chromium, driven by its command line alone."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DARK = "--blink-settings=preferredColorScheme=0"

# What the page looks like once it stands: written into the outer page, where it can be read.
MEASURE = """
const inner = document.getElementById("page"), of = inner.contentDocument, view = inner.contentWindow;
const all = (query) => [...of.querySelectorAll(query)];
const box = (element) => element.getBoundingClientRect();
const links = all("a[href]").map((a) => a.getAttribute("href"));
const said = {
  scroll: of.documentElement.scrollWidth,
  plots: all("svg.plot").map((p) => [box(p).width, box(p).height]),
  paths: all("svg.plot .line path").map((p) => p.getTotalLength()),
  images: all("img").map((i) => i.naturalWidth),
  letters: Math.min(...all("svg.plot text").map((t) => Math.max(box(t).height, box(t).width))),
  lost: links.filter((h) => h.startsWith("#") && !of.getElementById(h.slice(1))),
  links: links,
  paper: view.getComputedStyle(of.body).backgroundColor,
  ink: view.getComputedStyle(of.body).color,
};
const out = document.createElement("pre");
out.id = "said";
out.textContent = JSON.stringify(said);
document.body.append(out);
"""


def chromium(*arguments):
    """What Chromium wrote to stdout and to its log."""
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", "--enable-logging=stderr", "--log-level=0",
         "--virtual-time-budget=5000", *arguments],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip


def complaints(page):
    """What the console says while the page is opened, as it stands on the disk."""
    return re.findall(r":CONSOLE[^\]]*\] (.*)", chromium("--dump-dom", page.as_uri()).stderr)


def seen(page, folder, width, *arguments):
    """The page in a window of that width: sizes, links, colours.

    Windows have a least width, frames have none. The page's own policy would forbid the frame its looks.
    """
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    outer = folder / f"outer-{width}.html"
    outer.write_text(
        f'<!doctype html><meta charset="utf-8"><body><iframe id="page" width="{width}" height="900" '
        f'frameborder="0" srcdoc="{escape(text)}"></iframe>'
        f"<script>window.onload = () => {{ {MEASURE} }};</script></body>"
    )
    dumped = chromium("--dump-dom", "--window-size=1400,1000", *arguments, outer.as_uri()).stdout
    return json.loads(unescape(re.search(r'<pre id="said">(.*?)</pre>', dumped, re.DOTALL)[1]))
