#!/usr/bin/env python3
"""Opens a report of `yoke compare` in headless Chromium.

Checks that the console is empty and every plot is drawn, and that the report can be read on a screen of 1200 pixels and
on a telephone of 420. Exits with 77 (SKIPPED) if Chromium is not installed. --picture FILE keeps the screenshot.
"""
import argparse
import html
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

RUN = """\
parallel_backend = "serial"
run.dir = "runs/r"
[model]
preset = "tiny"
layers = 1
[data]
path = "text.txt"
seq_len = 32
[train]
global_batch = 4
"""
PLOTS = 6  # each is drawn twice, for a screen and for a telephone
LONG = "a-case-of-25-letters-long"
LEAST_TEXT = 11  # pixels
TABLE = {420: ["case", "verdict", "step, ms", "speed", "memory", "traffic"],
         1200: ["case", "ranks", "layout", "verdict", "loss diff.", "norm diff.", "step, ms", "tokens/s", "speed",
                "memory", "traffic"]}
# Chromium's windows have at least 500 pixels, so a page with a frame of the wanted width contains the report.
FRAME = """\
<!DOCTYPE html><meta charset="utf-8"><script>
function measure(frame) {
  const page = frame.contentDocument;
  const shown = (selector) => [...page.querySelectorAll(selector)].filter((e) => e.getBoundingClientRect().width > 0);
  const right = (element) => element.getBoundingClientRect().right;
  const plot = (svg) => {
    const texts = [...svg.querySelectorAll("text")];
    const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    return {right: Math.max(...texts.map(right)), left: Math.min(...texts.map((t) => t.getBoundingClientRect().left)),
            text: Math.min(...texts.map((t) => scale * parseFloat(page.defaultView.getComputedStyle(t).fontSize)))};
  };
  document.body.textContent = JSON.stringify({
    window: page.documentElement.clientWidth, page: page.documentElement.scrollWidth,
    columns: shown(".summary th").map((e) => [e.textContent, right(e)]), plots: shown("svg").map(plot)});
}
</script><body><iframe style="border: 0; width: WIDTHpx; height: 900px" onload="measure(this)" srcdoc="REPORT"></iframe>
"""
HANG = 900  # seconds after which a program counts as hung; a busy machine is many times slower than an idle one


def find_browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    print("SKIPPED: no chromium here; scripts/setup --peers installs it")
    sys.exit(77)


def make_report(folder):
    (folder / "run.toml").write_text(RUN)
    (folder / "text.txt").write_text("the cat sat on the mat and saw a rat; " * 600)
    yoke = pathlib.Path(os.environ["YOKE_BIN"]) / "yoke"
    command = [yoke, "compare", "run.toml", "--backends", "serial", "--case", f"{LONG}:parallel_backend=serial",
               "--nproc", "2", "--repeats", "1", "--steps", "8", "-o", "report.html"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)
    if result.returncode != 0:
        sys.exit(f"yoke compare ended with {result.returncode}:\n{result.stderr}")
    return folder / "report.html"


def browse(browser, folder, report, *words):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
               "--enable-logging=stderr", "--v=0", f"--user-data-dir={folder / 'profile'}", *words, report.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=True)


def check_width(browser, folder, report, width):
    """Checks the layout of the report in a window of this width."""
    page = folder / f"frame{width}.html"
    page.write_text(FRAME.replace("WIDTH", str(width)).replace("REPORT", html.escape(report.read_text())))
    body = re.search(r"<body>(.*)</body>", browse(browser, folder, page, "--dump-dom").stdout, re.DOTALL)
    seen = json.loads(html.unescape(body.group(1)))
    assert seen["window"] == width, seen
    assert seen["page"] <= width, f"the page has {seen['page']} pixels in a window of {width}"
    assert [name for name, _ in seen["columns"]] == TABLE[width], seen["columns"]
    for name, right in seen["columns"]:
        assert right <= width, f"the column '{name}' ends at {right} of {width}"
    assert len(seen["plots"]) == PLOTS, f"{len(seen['plots'])} plots are shown at {width}, expected {PLOTS}"
    for plot in seen["plots"]:
        assert plot["text"] >= LEAST_TEXT, f"text of {plot['text']} pixels at {width}"
        assert plot["left"] >= 0 and plot["right"] <= width, f"text outside of the page at {width}: {plot}"


def rows_of_png(data):
    """Returns the rows of an 8-bit RGB or RGBA picture as bytes, with PNG's filters undone, and its channels."""
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    channels = {2: 3, 6: 4}[kind]
    assert depth == 8
    packed, at = b"", 8
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at : at + 8])
        if name == b"IDAT":
            packed += data[at + 8 : at + 8 + size]
        at += size + 12
    raw, stride = zlib.decompress(packed), width * channels
    above, rows = bytearray(stride), []
    for y in range(height):
        kind, row = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1 : (y + 1) * (stride + 1)])
        for x in range(stride):
            left = row[x - channels] if x >= channels else 0
            corner = above[x - channels] if x >= channels else 0
            if kind == 1:
                row[x] = (row[x] + left) & 255
            elif kind == 2:
                row[x] = (row[x] + above[x]) & 255
            elif kind == 3:
                row[x] = (row[x] + (left + above[x]) // 2) & 255
            elif kind == 4:
                guess = left + above[x] - corner
                near = min((abs(guess - v), i, v) for i, v in enumerate((left, above[x], corner)))[2]
                row[x] = (row[x] + near) & 255
        rows.append(bytes(row))
        above = row
    return rows, channels


def has_colour(picture, wanted):
    """Returns True if some pixel has almost this colour."""
    rows, channels = rows_of_png(picture.read_bytes())
    for row in rows:
        for x in range(0, len(row), channels):
            if all(abs(row[x + i] - wanted[i]) <= 6 for i in range(3)):
                return True
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--report", type=pathlib.Path, help="an existing report, in place of a new one")
    options = parser.parse_args()
    browser = find_browser()
    with tempfile.TemporaryDirectory(prefix="yoke-report-") as name:
        folder = pathlib.Path(name)
        report = options.report.resolve() if options.report else make_report(folder)
        page = browse(browser, folder, report, "--dump-dom")
        complaints = [line for line in page.stderr.splitlines() if "CONSOLE" in line]
        assert not complaints, complaints
        plots = re.findall(r"<svg.*?</svg>", page.stdout, re.DOTALL)
        assert len(plots) == 2 * PLOTS, f"{len(plots)} pictures, expected {2 * PLOTS}"
        for plot in plots:
            assert re.search(r"<(polyline|rect|circle)", plot), f"an empty plot: {plot[:200]}"
            unknown = re.search(r"\b(nan|inf)\b", plot, re.IGNORECASE)
            assert not unknown, f"a coordinate that is not a number: {plot[:200]}"
        for width in TABLE:
            check_width(browser, folder, report, width)
        picture = options.picture or folder / "picture.png"
        browse(browser, folder, report, f"--screenshot={picture.resolve()}", "--window-size=1000,3200")
        assert has_colour(picture, (0x00, 0x72, 0xB2)), "the first colour of the plots is missing in the picture"
    print(f"{len(plots)} pictures, nothing on the console, readable at {' and '.join(map(str, TABLE))} pixels")


if __name__ == "__main__":
    main()
