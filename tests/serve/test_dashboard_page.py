"""The page in a real browser, where there is one: it draws what comes, by mouse and by keys, in light and dark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.chromium import Page, find_chromium
from tests.serve.live_support import LiveServer
from tests.serve.support import HOST

from dovetail.serve.keys import Key, add
from dovetail.wiring import PolicySpec

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium here; `apt-get install chromium` brings it"),
]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page that has seen some requests, with more coming."""
    server = LiveServer("tests.live.apps:app", policy=PolicySpec("dovetail", goal="time"))
    browser = Page()
    enough = threading.Event()

    def load() -> None:
        while not enough.is_set():
            server.ask("fan", 3.0, parameters={"slo_ms": 60_000})
            server.ask("plain", 1.0, id="of a client", parameters={"slo_ms": 60_000})
            enough.wait(0.02)

    asking = threading.Thread(target=load)
    try:
        asking.start()
        browser.open(f"http://{HOST}:{server.port}/dashboard")
        browser.until("document.querySelectorAll('#requests button').length > 3")
        yield browser
    finally:
        enough.set()
        asking.join()
        browser.close()
        server.stop()


def test_it_draws_what_comes_and_asks_nobody_else(page: Page) -> None:
    page.until("document.querySelector('#pulse').textContent === 'live'")
    page.until("[...document.querySelectorAll('#classes tbody tr')].some(r => r.textContent.includes('fan'))")
    page.until("document.querySelectorAll('#chart-good path.series').length >= 2")
    page.until("document.querySelector('#memory').textContent.includes('double')")
    page.until("document.querySelector('#tiles').textContent.includes('Attainment')")
    # Something is painted into the lanes.
    page.until(
        "(() => { const c = document.querySelector('#lanes'); const d = c.getContext('2d')"
        ".getImageData(100, 0, c.width - 100, c.height).data; const s = new Set();"
        " for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 200) s.add(d[i] + ',' + d[i + 1] + ',' + d[i + 2]);"
        " return s.size > 3; })()"
    )
    assert page.complaints == []
    assert all("/dashboard" in url and HOST in url for url in page.asked)


def test_the_graph_follows_the_tab_and_the_keys(page: Page) -> None:
    tabs = page.evaluate("[...document.querySelectorAll('#tabs [role=tab]')].map(t => t.textContent)")
    page.press(str(tabs.index("fan") + 1))
    page.until("document.querySelector('#h-graph').textContent.endsWith('fan')")
    nodes = page.evaluate("[...document.querySelectorAll('#graph .node .name')].map(t => t.textContent)")
    assert any("split" in name for name in nodes) and any("∗" in name for name in nodes)
    page.until("document.querySelector('#graph').getAttribute('aria-label').includes('ms running')")


def test_a_request_tells_its_story_and_escape_closes_it(page: Page) -> None:
    page.evaluate("document.querySelector('#requests button').click()")
    page.until("document.querySelector('#drawer').open && document.querySelectorAll('#drawer .fall rect').length > 0")
    assert "arrived for" in page.evaluate("document.querySelector('#drawer').textContent")
    page.evaluate("document.querySelector('#drawer-close').click()")
    page.until("!document.querySelector('#drawer').open")
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "find-id"
    page.evaluate("document.activeElement.blur()")


def test_the_lanes_are_walked_by_keys(page: Page) -> None:
    page.press("d")
    assert page.evaluate("document.activeElement.id") == "lanes"
    page.press("p")
    page.press("ArrowLeft")
    page.until("document.querySelector('#lane-said').textContent.startsWith('batch ')")
    page.press("Enter")
    page.until("document.querySelector('#drawer').open")
    page.evaluate("document.querySelector('#drawer-close').click()")
    page.press("p")
    page.until("document.querySelector('#pulse').textContent === 'live'")


def test_what_if_shows_the_simulators_answer(page: Page) -> None:
    page.evaluate("document.querySelector('#whatif .primary').click()")
    page.until("document.querySelectorAll('#whatif-answer tbody tr').length > 0")
    assert "simulated from the present" in page.evaluate("document.querySelector('#whatif-answer').textContent")


def test_light_and_dark_differ_and_both_have_contrast(page: Page, tmp_path: Path) -> None:
    contrast = """(() => {
      const part = (x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number).map(part);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const card = light(getComputedStyle(document.querySelector('.card')).backgroundColor);
      const probe = document.createElement('span');
      document.body.append(probe);
      const names = ['ink', 'soft', 'good', 'warn', 'bad', 'accent', 's0', 's1', 's2', 's3', 's4', 's5', 's6', 's7'];
      const found = names.map((name) => {
        probe.style.color = `var(--${name})`;
        const ink = light(getComputedStyle(probe).color);
        return [(Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05), name];
      });
      probe.remove();
      return found.sort((a, b) => a[0] - b[0])[0]; })()"""
    cards = []
    for dark in (False, True):
        page.dark(dark)
        page.until(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
        ratio, name = page.evaluate(contrast)
        assert ratio >= 3.9, (dark, name, ratio)
        cards.append(page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor"))
        page.screenshot(tmp_path / f"{dark}.png")
        assert (tmp_path / f"{dark}.png").stat().st_size > 20_000
    assert cards[0] != cards[1]
    assert page.complaints == []


def test_a_server_with_keys_asks_for_one_and_then_shows_everything(tmp_path: Path) -> None:
    _, key = add(tmp_path / "keys.json", Key("0" * 12, "0" * 64, "acme", scopes=("observe",)))
    server = LiveServer("tests.live.apps:app", keys=tmp_path / "keys.json")
    browser = Page()
    try:
        browser.open(f"http://{HOST}:{server.port}/dashboard")
        browser.until("document.readyState === 'complete'")
        assert browser.evaluate("document.querySelector('#pulse')") is None
        browser.open(f"http://me:{key}@{HOST}:{server.port}/dashboard")
        browser.until("document.querySelector('#pulse')?.textContent === 'live'")
        browser.evaluate("document.querySelector('#whatif .primary').click()")
        said = browser.until("document.querySelector('#whatif-answer').textContent")
        assert "fetch" not in said and "401" not in said, said
    finally:
        browser.close()
        server.stop()
