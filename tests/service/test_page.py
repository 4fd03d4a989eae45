"""The page in a browser: text in, colours out, by mouse and by keyboard, wide and narrow, light and dark.

Needs Chromium (/usr/bin/chromium, or $CHROMIUM) and playwright; `python -m tools.service_screenshots` draws the
documentation's pictures.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.pretrained.folders import write_folder
from tests.pretrained.test_labels import NAMES, classifier
from tests.service.served import TOKEN, serving

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")

pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium at hand")]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
TEXT = "the cat sat on a mat and slept"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    place = tmp_path_factory.mktemp("page")
    folder = place / "cats"
    for one in ("cats", "moods"):
        (place / one).mkdir()
    write_folder(folder, "bert")
    moods = classifier(place / "moods")
    models = {"cats": str(folder), "moods": str(moods), "slow": "tests.service.served:slow"}
    with serving(place / "store", models) as served:
        yield served


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(service, browser, request):
    """A page that is logged in; whatever its script complains of fails the test."""
    options = getattr(request, "param", {"viewport": {"width": 1200, "height": 900}})
    context = browser.new_context(**options)
    page, said = context.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(f"{service.address}/?token={TOKEN}")
    yield page
    context.close()
    assert [one for one in said if "400 (Bad Request)" not in one] == []


def measure(page, text=TEXT):
    page.locator("textarea[name=tokens]").first.fill(text)
    page.get_by_role("button", name="Measure").click()
    page.locator(".picture[data-shown=exact] .t.up").first.wait_for()


def test_a_sentence_gets_its_colours_and_the_token_leaves_the_address(page):
    assert "token" not in page.url
    measure(page)
    shown = page.locator(".picture .t").all_inner_texts()
    assert [one for one in shown if one in TEXT.split()] == TEXT.split()
    assert "finished" in page.locator(".state").inner_text()


@pytest.mark.parametrize("form", ["Parquet", "SVG", "JSON"])
def test_a_result_can_be_taken_home(page, form):
    measure(page)
    with page.expect_download() as download:
        page.get_by_role("link", name=form).click()
    assert Path(download.value.path()).stat().st_size > 100


def test_the_labels_of_a_classifier_are_offered_and_measured(page):
    assert not page.get_by_label("Label whose").first.is_visible()
    page.locator("select[name=model]").first.select_option("moods")
    page.get_by_label("Label whose").first.select_option(NAMES["1"])
    measure(page)
    assert NAMES["1"] in page.locator(".picture").inner_text()


def test_it_works_by_keyboard_alone(page):
    page.locator("textarea[name=tokens]").first.focus()
    page.keyboard.type(TEXT)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.locator("button.main:focus").count():
            break
    page.keyboard.press("Enter")
    page.locator(".picture .t.up").first.wait_for()


def test_two_texts_stand_side_by_side_and_come_back_after_a_reload(page):
    page.get_by_role("button", name="Compare").click()
    page.locator("textarea[name=tokens]").nth(1).fill("a dog sat on the mat")
    measure(page)
    page.locator(".picture[data-shown=exact]").nth(1).wait_for()
    left, right = (page.locator(".result").nth(k).bounding_box() for k in (0, 1))
    assert left["y"] == right["y"]
    page.locator("button.main:enabled").wait_for()
    page.wait_for_url("**/#*,*")
    page.reload()
    page.locator(".picture[data-shown=exact]").nth(1).wait_for()


def test_a_measurement_can_be_cancelled_and_forgotten(page):
    page.locator("select[name=model]").first.select_option("slow")
    page.locator("textarea[name=tokens]").first.fill("0 1 2 " * 40)
    page.locator("select[name=flips]").select_option("substitute")
    page.locator("input[name=flips-fields]").fill("symbols=3")
    page.locator("select[name=engine]").select_option("vmap")
    page.locator("input[name=readout]").fill("auto")
    page.get_by_role("button", name="Measure").click()
    page.locator("#cancel:enabled").click()
    page.locator(".state", has_text="cancelled").wait_for(timeout=5000)
    page.locator("#history li", has_text="cancelled").get_by_role("button", name="Forget").click()
    page.locator("#history li", has_text="cancelled").wait_for(state="detached")


def test_an_unusable_field_is_said_in_words(page):
    page.locator("textarea[name=tokens]").first.fill(TEXT)
    page.locator("select[name=flips]").select_option("neighbours")
    page.locator("input[name=flips-fields]").fill("k=0")
    page.get_by_role("button", name="Measure").click()
    page.locator("#said.bad").wait_for()
    assert "flips.k = 0" in page.locator("#said").inner_text()


@pytest.mark.parametrize("text", ["<script>x</script> cat", "<img src=x onerror=y> cat"])
def test_a_script_in_a_text_is_shown_and_not_run(page, text):
    measure(page, text)
    assert page.title().startswith("jaxsens")
    assert page.locator(".picture script, .picture img, #history script, #history img").count() == 0


def test_two_windows_follow_the_same_question(page, service, browser):
    measure(page)
    other = browser.new_context()
    second = other.new_page()
    second.goto(f"{service.address}/?token={TOKEN}")
    measure(second)
    asked = [
        (one["question"]["model"], one["question"]["tokens"])
        for one in service.http.get("/v1/measurements").json()
    ]
    assert asked.count(("cats", TEXT)) == 1
    other.close()


@pytest.mark.parametrize("page", [{"viewport": {"width": 400, "height": 800}}], indirect=True)
def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    measure(page)
    width = page.evaluate_handle("document.documentElement").get_property("scrollWidth").json_value()
    assert width <= 400


@pytest.mark.parametrize(
    "page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=str
)
def test_axe_finds_nothing_serious(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    measure(page)
    page.get_by_text("Sweeps").click()
    assert page.get_by_text("jaxsens sweep CONFIG --out DIR").is_visible()
    found = axe.Axe().run(page).response["violations"]
    serious = [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found
               if one["impact"] in ("serious", "critical")]  # fmt: skip
    assert serious == []


def test_a_stranger_sees_nothing(service, browser):
    context = browser.new_context()
    page = context.new_page()
    assert page.goto(service.address).status == 401
    context.close()
