"""The report's page in a real browser, wide and narrow: `make test-browser`.

Chromium lays the page out and tells its measures through the page's title; the copy
that is measured has a script for that, which the report itself forbids.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from testbed.lab.report.chart import Cap, Chart, Line, Panel, Phase, Side
from testbed.lab.report.webpage import webpage
from testbed.lab.scenario.record import Check, Control, Environment, Record, Report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium (Debian: chromium)")

MEASURE = """<script>
const at = e => { const r = e.getBoundingClientRect(); return [r.left, r.right, r.height]; };
const all = s => [...document.querySelectorAll(s)].filter(e => e.getClientRects().length).map(at);
document.title = JSON.stringify({
  width: innerWidth, scroll: document.documentElement.scrollWidth, texts: all('svg text'),
  pictures: all('.pictures svg'), cells: all('td'), table: all('.scroll table'),
  box: all('.scroll'), ground: getComputedStyle(document.body).backgroundColor});
</script>"""


def record(case: str, verdict: Any) -> Record:
    check = Check(
        name="memory_cap", pod="training", variant="expandable_segments", verdict=verdict,
        asked=30720.0, workload=33792.0, card=33792.0, tolerance=2.0, unit="MiB",
        source="monitor (emulated)", reason="above the cap " * 3, control="fail",
    )  # fmt: skip
    long = Check(name="annotations", verdict="pass", asked="1 card", workload="GPU-" + "f" * 60)
    return Record(
        case=case, verdict=verdict, asserts_limit=True, checks=(check, long),
        control=Control(verdict="pass", checks=(check,)), started="2026-01-02T03:04:05+00:00",
        seconds=61.0, reason="x" * 200, parameters={"pods": {"a": {"gpumem": 30720}}},
        environment=Environment(
            provider="process", card="NVIDIA A100-SXM4-80GB (emulated)", kubernetes="v1.37.2",
            torch="2.15.0", stack="s", shim="libvgpu.so " + "0123456789abcdef" * 4,
        ),
    )  # fmt: skip


def chart() -> Chart:
    line = Line(label="training", times=(0.0, 10.0, 20.0), values=(0.0, 33.0, 0.0))
    panel = Panel(
        quantity="memory", title="memory on the card", unit="GiB", lines=(line,),
        caps=(Cap(label="training", value=30.0),),
    )  # fmt: skip
    side = Side(
        title="with the limiter", control=False, seconds=20.0, panels=(panel,),
        phases=(Phase(name="expandable_segments", begin=1.0, end=19.0),),
    )  # fmt: skip
    return Chart(sides=(side, side))


@pytest.fixture(scope="module")
def page() -> str:
    cases = (record("co_location/" + "long-name-" * 6, "fail"), record("q/c", "pass"))
    report = Report(verdict="fail", cases=cases, seconds=1.0, reproduce="testbed run " + "x" * 90)
    return webpage(report, [chart(), None], [{}, {}])


def measured(page: str, folder: Path, width: int, *arguments: str) -> dict[str, Any]:
    """Lay the page out in a window of some width and return its measures, px."""
    copy = re.sub(r"<meta http-equiv[^>]*>", "", page).replace("</body>", MEASURE + "</body>")
    (folder / "page.html").write_text(copy, encoding="utf-8")
    # A window of Chromium has a least width: a frame has none.
    frame = f'<iframe id="f" src="page.html" width="{width}" height="3000" style="border:0">'
    (folder / "frame.html").write_text(
        f"<!doctype html>{frame}</iframe><script>onload = () => document.title ="
        " document.getElementById('f').contentDocument.title</script>"
    )
    done = subprocess.run(
        [
            str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--allow-file-access-from-files", f"--user-data-dir={folder / 'profile'}",
            *arguments, "--window-size=1600,3000", "--virtual-time-budget=3000", "--dump-dom",
            f"file://{folder / 'frame.html'}",
        ],
        capture_output=True, text=True, timeout=90, check=True,
    )  # fmt: skip
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout, re.S)
    found: dict[str, Any] = json.loads(html.unescape(title))
    assert found["width"] == width
    return found


@pytest.mark.parametrize("width", [360, 500, 800, 1280])
def test_it_fits_and_can_be_read(page: str, tmp_path: Path, width: int) -> None:
    found = measured(page, tmp_path, width)
    assert found["scroll"] <= width, "the page scrolls sideways"
    assert found["texts"] and min(height for _, _, height in found["texts"]) >= 9
    left_edges = {round(left) for left, _, _ in found["pictures"]}
    assert len(left_edges) == (2 if width >= 1000 else 1)  # beside or below each other
    if width <= 500:
        assert all(right <= width for _, right, _ in found["cells"])
    if width >= 1280:
        for (_, table, _), (_, box, _) in zip(found["table"], found["box"], strict=True):
            assert table <= box + 1


def test_it_is_dark_where_the_reader_wants_it(page: str, tmp_path: Path) -> None:
    light = measured(page, tmp_path, 800)["ground"]
    dark = measured(page, tmp_path, 800, "--blink-settings=preferredColorScheme=0")["ground"]
    brightness = [sum(map(int, re.findall(r"\d+", each)[:3])) for each in (light, dark)]
    assert brightness[0] > 600 and brightness[1] < 150


def test_the_measures_can_fail(page: str, tmp_path: Path) -> None:
    wide = page.replace("<h3>Checks</h3>", "<div style='width:2000px'>x</div>")
    assert measured(wide, tmp_path, 500)["scroll"] > 500
