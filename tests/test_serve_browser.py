"""The search page in a real browser: Chromium without a window, driven by Playwright, the server in this process.

Skipped where either is missing: `pip install playwright`, and Debian's package `chromium` or CHROMIUM=path.
"""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serve_index import EACH, EVIL, encoded, make_index, running

pytestmark = pytest.mark.programs

pytest.importorskip("fastapi", reason="the extra [serve] is not installed")
sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
if not CHROMIUM.exists():
    pytest.skip(f"there is no Chromium at {CHROMIUM}; install it or set CHROMIUM", allow_module_level=True)

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --use-fake-device-for-media-stream --use-fake-ui-for-media-stream"
)
TOKEN = "a token of 22 letters."
GIVE = """([kind, texts]) => {
  const files = new DataTransfer();
  for (const text of texts) {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    files.items.add(new File([bytes], "query.png", { type: "image/png" }));
  }
  const event = kind === "paste" ? new ClipboardEvent(kind, { clipboardData: files, bubbles: true, cancelable: true })
    : new DragEvent(kind, { dataTransfer: files, bubbles: true, cancelable: true });
  document.body.dispatchEvent(event);
}"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("page"), f"{EVIL}.index")


@pytest.fixture(scope="module")
def address(shop: Path) -> Iterator[str]:
    with running(shop) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as tool:
        found = tool.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield found
        found.close()


@pytest.fixture
def problems() -> list[str]:
    """What a page must not do: log an error, ask another server, open a dialog."""
    return []


def opened(browser: Any, address: str, problems: list[str], path: str = "/", ready: bool = True, **options: Any) -> Any:
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options})
    context.set_default_timeout(30_000)

    def refuse(route: Any) -> None:
        problems.append(route.request.url)
        route.abort()

    def dismiss(dialog: Any) -> None:
        problems.append(dialog.message)
        dialog.dismiss()

    context.route(re.compile(rf"^(?!{re.escape(address)}/|blob:|data:)"), refuse)
    page = context.new_page()
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", dismiss)
    page.goto(address + path)
    if ready:
        page.wait_for_selector("html[data-ready]", state="attached")
    return page


@pytest.fixture
def page(browser: Any, address: str, problems: list[str]) -> Iterator[Any]:
    found = opened(browser, address, problems)
    yield found
    found.context.close()
    assert problems == []


def upload(page: Any, *contents: bytes) -> None:
    files = [{"name": "query.png", "mimeType": "image/png", "buffer": content} for content in contents]
    with answered(page):
        page.set_input_files("#file", files)


def answered(page: Any) -> Any:
    """A block after which a search is answered and shown."""
    return page.expect_response(lambda response: "/search" in response.url and response.ok)


def until(page: Any, true: str) -> None:
    """Wait until an expression is true; the page's policy forbids what Playwright would inject for it."""
    end = time.monotonic() + 30
    while not page.evaluate(true):
        assert time.monotonic() < end, true
        page.wait_for_timeout(30)


def labels(page: Any) -> list[str]:
    until(page, "!document.querySelector('#hits').classList.contains('busy')")
    return list(page.locator("#hits .hit > b").all_inner_texts())


def ids(page: Any) -> list[int]:
    labels(page)
    return [int(id) for id in page.locator("#hits .hit").evaluate_all("all => all.map((e) => e.dataset.id)")]


def test_an_upload_is_answered(page: Any) -> None:
    upload(page, encoded(4, 1))
    assert labels(page)[0] == "class 4"
    assert len(labels(page)) == 12
    assert page.inner_text("#hits .hit .similar") == "1.000"
    assert re.search(r"(Known|New): ", page.inner_text("#verdict"))
    assert "probability" in page.inner_text("#verdict")
    assert re.fullmatch(r"Answered in .* ms \(decoding .*\); .* ms in the browser\.", page.inner_text("#latency"))
    bars = page.locator("#hits .meter i").evaluate_all("all => all.map((e) => e.getBoundingClientRect().width)")
    assert bars[0] > 0
    assert sorted(bars, reverse=True) == bars
    link = page.get_attribute("#hits .hit a", "href")
    assert page.request.get(page.url.rstrip("/") + link).body() == encoded(4, 1)  # the original file


@pytest.mark.parametrize("kind", ["paste", "drop"])
def test_an_image_is_pasted_or_dropped(page: Any, kind: str) -> None:
    with answered(page):
        page.evaluate(GIVE, [kind, [base64.b64encode(encoded(7, 2)).decode()]])
    assert labels(page)[0] == "class 7"
    assert page.locator("#stage img").is_visible()


def test_the_camera(page: Any) -> None:
    page.click("#camera")
    page.wait_for_selector("#lens[open]")
    with answered(page):
        page.click("#shoot")
    assert len(labels(page)) == 12
    assert not page.locator("#lens").is_visible()


def test_a_part_of_the_image_is_searched(page: Any) -> None:
    upload(page, encoded(8, 2))
    before = ids(page)
    box = page.locator("#frame .frame").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2, steps=4)
    with answered(page), page.expect_request(re.compile("/search")) as asked:
        page.mouse.up()
    sent = asked.value.post_data_buffer.decode("latin-1")
    left, top, right, bottom = map(float, re.findall(r'name="crop"\r\n\r\n([\d.,]+)\r\n', sent)[0].split(","))
    assert 0 < left < 0.1
    assert 0 < top < 0.1
    assert right == pytest.approx(0.5, abs=0.03)
    assert bottom == pytest.approx(0.5, abs=0.03)
    assert page.locator("#frame .box").is_visible()
    page.focus("#frame .frame")
    with answered(page):
        page.keyboard.press("Shift+ArrowRight")
    with answered(page):
        page.keyboard.press("Escape")
    assert not page.locator("#frame .box").is_visible()
    end = time.monotonic() + 30
    while ids(page) != before:  # answers about parts may come first
        assert time.monotonic() < end
        page.wait_for_timeout(30)


def test_a_late_answer_about_a_part_is_not_that_of_the_whole_image(page: Any) -> None:
    upload(page, encoded(8, 2))
    before = ids(page)
    held: list[Any] = []
    page.route(re.compile("/search"), lambda route: route.continue_() if held else held.append(route))
    page.focus("#frame .frame")
    with page.expect_request(re.compile("/search")):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(30)  # until the request is held
    with page.expect_request(re.compile("/search")) as asked:
        page.keyboard.press("Escape")
        held[0].continue_()  # its answer comes before the whole image is asked for
    assert b'name="image"' in asked.value.post_data_buffer
    assert ids(page) == before


def test_results_of_one_class(page: Any) -> None:
    upload(page, encoded(1, 0))
    with answered(page):
        page.select_option("#controls select >> nth=0", EVIL)
    assert set(labels(page)) == {EVIL}
    with answered(page):
        page.select_option("#controls select >> nth=1", "6")
    assert len(labels(page)) <= 6


def test_feedback_changes_the_results(page: Any) -> None:
    upload(page, encoded(4, 1))
    before = ids(page)
    page.click("#hits .hit >> nth=-1 >> [aria-label=Right]")
    page.click("#hits .hit >> nth=0 >> [aria-label=Wrong]")
    assert "1 right, 1 wrong" in page.inner_text("#refine")
    with page.expect_request(re.compile("/search")) as asked:
        page.click("#refine")
    body = asked.value.post_data_json
    assert (body["right"], body["wrong"]) == (before[-1:], before[:1])
    until(page, "document.querySelector('#verdict').textContent.includes('without feedback')")
    after = ids(page)
    assert after != before
    assert "right" in page.get_attribute(f'#hits .hit[data-id="{before[-1]}"]', "class")
    page.click(f'#hits .hit[data-id="{before[-1]}"] [aria-label=Right]')
    assert "0 right, 1 wrong" in page.inner_text("#refine")


def test_several_images_are_one_query(page: Any) -> None:
    upload(page, encoded(4, 1), encoded(4, 2))
    assert page.locator("#examples li").count() == 2
    page.locator("#tiles .tile").first.scroll_into_view_if_needed()
    with answered(page):
        page.locator("#tiles .tile").first.click(modifiers=["Shift"])
    assert page.locator("#examples li").count() == 3
    with answered(page):
        page.click("#examples .drop-it >> nth=0")
    assert page.locator("#examples li").count() == 2
    page.click("#over")
    assert page.locator("#hits .hit").count() == 0
    assert page.locator("#examples li").count() == 0


def test_an_item_is_searched(page: Any) -> None:
    first = page.locator("#tiles .tile").first
    first.wait_for()
    id = int(first.get_attribute("data-id"))
    with answered(page):
        first.click()
    assert id not in ids(page)
    with answered(page):
        page.select_option("#browse-controls select", "class 6")
        until(
            page,
            "[...document.querySelectorAll('#tiles .tile')].every((e) => e.textContent === 'class 6') &&"
            " document.querySelectorAll('#tiles .tile').length === " + str(EACH),
        )
        page.locator("#tiles .tile").first.click()
    assert page.locator("#examples li").count() == 1


def test_duplicates_are_apart_and_collapsed(page: Any) -> None:
    page.locator("#duplicates").scroll_into_view_if_needed()
    page.wait_for_selector("#identical .group-of-copies")
    assert page.locator("#identical .group-of-copies").count() == 1
    assert page.locator("#identical .tile").count() == 2
    assert page.locator("#near .group-of-copies").count() >= 1
    upload(page, encoded(3, 0))
    tag = page.locator("#hits .hit >> nth=0 >> .tag").first
    assert tag.inner_text() == "1 identical copy"
    tag.click()
    assert page.locator("#hits .hit >> nth=0 >> .twins .tile").count() == 1


def pointed_at(page: Any, canvas: Any, position: dict[str, float]) -> None:
    """Hover until the item's picture is seen: what loads above may push the map from under a pointer that rests."""
    end = time.monotonic() + 30
    while not page.locator("#tip img").is_visible():
        assert time.monotonic() < end, page.locator("#tip").evaluate("tip => tip.outerHTML")
        canvas.hover(position={**position, "x": position["x"] + 1})
        canvas.hover(position=position)
        page.wait_for_timeout(100)


def test_a_click_on_the_map_searches(page: Any) -> None:
    page.locator("#atlas").scroll_into_view_if_needed()
    canvas = page.locator("#atlas-stage canvas")
    canvas.wait_for()
    until(page, "document.querySelector('#atlas-stage canvas').atlas?.size.width > 0")
    x, y = canvas.evaluate("c => c.atlas.screen(5)")
    near = canvas.evaluate("(c, place) => c.atlas.nearest(place)", [x, y])
    expected = page.request.get(page.url.rstrip("/") + "/atlas").json()["ids"][near]
    pointed_at(page, canvas, {"x": x, "y": y})
    with page.expect_request(re.compile("/search")) as asked:
        canvas.click(position={"x": x, "y": y})
    assert asked.value.post_data_json["items"] == [expected]
    assert len(labels(page)) == 12
    canvas.focus()
    with answered(page):
        page.keyboard.press("Enter")


def test_the_heat_map(page: Any) -> None:
    upload(page, encoded(4, 1))
    page.click("#hits .hit >> nth=1 >> text=Why")
    page.wait_for_selector("#why canvas")
    assert "Similarity to" in page.inner_text("#why")
    colours = page.eval_on_selector(
        "#why canvas",
        "c => new Set(Array.from(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height)"
        ".data.buffer))).size",
    )
    assert colours > 10
    with answered(page):
        page.click("#hits .hit >> nth=1 >> text=Search")
    labels(page)
    page.click("#hits .hit >> nth=1 >> text=Why")
    page.wait_for_selector("#why canvas")


def test_everything_by_keyboard(page: Any) -> None:
    upload(page, encoded(4, 1))
    before = ids(page)
    page.focus("#hits .hit >> nth=0 >> a")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("y")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("n")
    assert "right" in page.get_attribute(f'#hits .hit[data-id="{before[1]}"]', "class")
    assert "wrong" in page.get_attribute(f'#hits .hit[data-id="{before[2]}"]', "class")
    page.keyboard.press("w")
    page.wait_for_selector("#why canvas")
    page.focus("#hits .hit >> nth=2 >> a")
    with answered(page):
        page.keyboard.press("s")
    seen = set()
    page.focus(".skip")
    for _ in range(20):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"file", "camera", "theme"} <= seen


def test_names_are_text_and_never_markup(page: Any) -> None:
    assert page.inner_text("h1") == f"{EVIL}.index"
    assert page.title().startswith(f"{EVIL}.index")
    upload(page, encoded(3, 0))
    assert labels(page)[0] == EVIL
    assert page.inner_text("#hits .where >> nth=0") == f"{EVIL}/0.png"
    assert page.locator("script").count() == 1  # the page's own


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_window(browser: Any, address: str, problems: list[str], scheme: str) -> None:
    page = opened(browser, address, problems, viewport={"width": 400, "height": 800}, color_scheme=scheme)
    upload(page, encoded(4, 1), encoded(4, 2))
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.locator("#duplicates").scroll_into_view_if_needed()
    page.wait_for_selector("#near .group-of-copies")
    page.wait_for_selector("#atlas-stage canvas")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")
    page.click("#theme")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 23, 27)"
    page.context.close()
    assert problems == []


def test_a_bad_image_is_explained(browser: Any, address: str, problems: list[str]) -> None:
    page = opened(browser, address, problems)
    page.set_input_files("#file", [{"name": "x.png", "mimeType": "image/png", "buffer": b"no image"}])
    page.wait_for_selector("#problem:not([hidden])")
    assert "An image must be one of" in page.inner_text("#problem")
    page.click("#over")
    upload(page, encoded(4, 1))
    assert labels(page)[0] == "class 4"
    assert not page.locator("#problem").is_visible()
    page.set_input_files("#file", [{"name": "x.txt", "mimeType": "text/plain", "buffer": b"text"}])
    assert "not an image" in page.inner_text("#problem")
    page.context.close()
    assert [text for text in problems if "415" not in text] == []  # the browser logs the refusal itself


def test_the_page_of_the_api(browser: Any, address: str, problems: list[str]) -> None:
    page = opened(browser, address, problems, "/docs")
    heads = page.locator(".route h2").all_inner_texts()
    assert "POST /search" in heads
    assert "DELETE /items/{id}" in heads
    page.context.close()
    assert problems == []


def test_the_token_is_asked_for(browser: Any, shop: Path, problems: list[str]) -> None:
    with running(shop, host="0.0.0.0", token=TOKEN) as address:
        page = opened(browser, address, problems, ready=False)
        page.wait_for_selector("#login[open]")
        page.fill("#token", "wrong")
        page.keyboard.press("Enter")
        until(page, "document.querySelector('#login-problem').textContent.includes('not valid')")
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        page.wait_for_selector("html[data-ready]", state="attached")
        upload(page, encoded(4, 1))
        until(page, "document.querySelector('#hits img')?.naturalWidth > 0")  # images are let in too
        page.context.close()
    assert [text for text in problems if "401" not in text] == []
