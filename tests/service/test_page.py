"""The page in a browser: text in, colours out, by mouse and by keyboard, wide and narrow, light and dark.

Needs Chromium (/usr/bin/chromium, or $CHROMIUM) and playwright; `python -m tools.service_screenshots` draws the
documentation's pictures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.pretrained.folders import write_folder
from tests.pretrained.test_model import NAMES, classifier
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
    write_folder(folder, "bert")
    (place / "moods").mkdir()
    moods = classifier(place / "moods")
    models = {"cats": str(folder), "moods": str(moods), "slow": "tests.service.served:slow"}
    (place / "sweeps" / "of one").mkdir(parents=True)
    (place / "sweeps" / "of one" / "report.html").write_text(
        "<h1>A report</h1><script>document.title = 'ran'</script>"
    )
    with serving(place / "store", models, "--reports", str(place / "sweeps")) as served:
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
    page.set_default_timeout(90_000)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.goto(f"{service.address}/?token={TOKEN}")
    yield page
    context.close()
    assert [one for one in said if not any(f"status of {code}" in one for code in (400, 404, 413))] == []


def measure(page, text=TEXT):
    page.locator("#text").fill(text)
    page.get_by_role("button", name="Measure").click()
    page.locator("#sentence[data-shown=exact] button.token").first.wait_for()


def answer_questions(page, status, body):
    def handle(route):
        route.fulfill(status=status, json=body) if route.request.method == "POST" else route.continue_()

    page.route("**/v1/measurements", handle)


def shown(page):
    return page.locator("#sentence .token").all_inner_texts()


def test_a_sentence_gets_its_colours_and_the_token_leaves_the_address(page):
    assert "token" not in page.url
    page.locator("#model option").nth(2).wait_for(state="attached")
    assert page.locator("#model option").all_inner_texts() == ["cats", "moods", "slow"]
    measure(page)
    assert [one for one in shown(page) if one in TEXT.split()] == TEXT.split()
    assert "finished" in page.locator("#state").inner_text()
    assert page.locator("#said").inner_text() == page.locator("#state").inner_text()


def test_the_largest_value_has_the_colour_of_the_end(page):
    measure(page)
    tints = [float(one.evaluate("one => one.style.getPropertyValue('--v')"))
             for one in page.locator("#sentence button.token").all()]  # fmt: skip
    names = [one.get_attribute("aria-label") for one in page.locator("#sentence button.token").all()]
    values = [float(one.rsplit(": ", 1)[1]) for one in names]
    end = float(page.locator("#legend .token").last.inner_text())
    assert 0.9 < max(tints) <= 1
    assert tints == pytest.approx([one / end for one in values], abs=0.01)


@pytest.mark.parametrize("form", ["PARQUET", "SVG", "JSON", "HTML"])
def test_a_result_can_be_taken_home_under_the_name_of_its_question(page, form):
    measure(page)
    page.locator("#downloads summary").click()
    with page.expect_download() as download:
        page.locator(f'#downloads a[download$=".{form.lower()}"]').click()
    assert download.value.suggested_filename.startswith("cats-the-cat-sat-on-a-mat")
    assert Path(download.value.path()).stat().st_size > 100


def test_the_labels_of_a_classifier_are_offered_and_measured(page):
    page.locator("#model").select_option("moods")
    page.locator("#measure").select_option("log-probability")
    page.get_by_label("Token", exact=True).select_option(label=NAMES["1"])
    page.get_by_label("Against", exact=True).select_option(label=NAMES["2"])
    measure(page)
    asked = page.locator("#history li", has_text=NAMES["1"]).first
    asked.wait_for()
    assert f"against {json.dumps(NAMES['2'])}" in asked.inner_text()


def test_it_works_by_keyboard_alone(page):
    page.get_by_role("button", name="an agreement").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+a")
    page.keyboard.type(TEXT)
    page.keyboard.press("Control+Enter")
    page.locator("#sentence[data-shown=exact] button.token").first.wait_for()
    page.locator("#sentence button.token").first.focus()
    page.keyboard.press("ArrowRight")
    second = page.locator("#sentence button.token").nth(1)
    assert second.evaluate("one => one === document.activeElement")
    assert second.inner_text() in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert not page.locator("#tip").is_visible()


def test_two_texts_share_a_scale_show_differences_and_come_back_after_a_reload(page):
    page.get_by_label("Compare with a second text").check()
    page.get_by_label("Text B").fill("a cat sat on the mat and slept")
    page.locator("#text").fill(TEXT)
    page.get_by_role("button", name="Measure").click()
    page.wait_for_url("**/#*,*")
    for _ in range(2):
        rows = page.locator(".pair").first.locator("tr")
        page.get_by_role("rowheader", name="B − A").first.wait_for()
        columns = [rows.nth(k).locator("td").all_inner_texts() for k in range(3)]
        at = columns[0].index("cat")
        assert columns[1][at] == "cat"
        assert columns[2][at].strip()[0] in "+−"
        assert page.locator("#stats dl").count() == 2
        page.reload()


def test_a_measurement_can_be_cancelled_and_forgotten(page):
    page.locator("#model").select_option("slow")
    page.locator("#text").fill("0 1 2 " * 40)
    page.locator("#flips").select_option("substitute")
    page.locator("#flips-symbols").fill("3")
    page.locator("#advanced summary").click()
    page.locator("#engine").select_option("vmap")
    page.get_by_role("button", name="Measure").click()
    page.locator("#cancel:visible").wait_for()
    page.locator("#state", has_text="flips").wait_for()
    page.keyboard.press("Escape")
    page.locator("#state", has_text="cancelled").wait_for(timeout=10000)
    page.locator("#history li", has_text="cancelled").get_by_role("button", name="Forget").click()
    page.locator("#history li", has_text="cancelled").wait_for(state="detached")


def test_an_unusable_field_is_said_once_at_the_field_until_it_changes(page):
    page.locator("#text").fill(TEXT)
    page.locator("#flips").select_option("neighbours")
    assert page.locator("#flips-k").get_attribute("placeholder") == "8"
    page.locator("#flips-k").fill("0")
    page.get_by_label("Compare with a second text").check()
    page.get_by_label("Text B").fill("a cat")
    page.get_by_role("button", name="Measure").click()
    page.locator("#cost", has_text="One field").wait_for()
    page.locator("#cancel").wait_for(state="hidden")
    error = page.locator(".field[data-path=flips] .error")
    error.wait_for()
    assert error.count() == 1
    assert error.inner_text() not in page.locator("main").inner_text()
    assert page.locator("#flips-k").get_attribute("aria-describedby") == error.get_attribute("id")
    assert page.locator("#flips-k").evaluate("one => one === document.activeElement")
    page.locator("#flips-k").fill("2")
    assert error.count() == 0
    page.get_by_label("Compare with a second text").uncheck()
    measure(page)


def test_a_question_that_is_too_large_gets_an_estimate_a_sample_or_a_command(page):
    answer_questions(page, 413, {"error": "too large: 9 h"})
    page.locator("#text").fill(TEXT)
    page.get_by_role("button", name="Measure").first.click()
    page.get_by_role("button", name="Copy a command").click()
    page.locator("#state", has_text=f"jaxsens measure --pretrained FOLDER --text '{TEXT}'").wait_for()
    page.get_by_role("button", name="Measure 1000 flips").click()
    assert page.locator("#sample").input_value() == "1000"
    page.get_by_role("button", name="Estimate only").wait_for()
    page.unroute("**/v1/measurements")
    page.get_by_role("button", name="Estimate only").click()
    page.locator("#sentence[data-shown=estimate]").wait_for()


def test_a_failed_question_is_measured_again(page):
    failed = {"id": "0" * 16, "state": "failed", "message": "The worker ended.", "question": {}, "about": {}}
    answer_questions(page, 202, failed)
    page.locator("#text").fill(TEXT)
    page.get_by_role("button", name="Measure").click()
    page.locator("#state", has_text="The worker ended.").wait_for()
    page.unroute("**/v1/measurements")
    page.get_by_role("button", name="Measure again").click()
    page.locator("#sentence[data-shown=exact]").wait_for()


def test_history_says_the_options_and_fills_the_form(page):
    page.locator("#flips").select_option("neighbours")
    page.locator("#flips-k").fill("3")
    measure(page)
    row = page.locator("#history li", has_text="k 3").first
    row.wait_for()
    page.reload()
    page.locator("#text").fill("")
    row.get_by_role("button", name="Use again").click()
    assert page.locator("#text").input_value() == TEXT
    assert page.locator("#flips-k").input_value() == "3"


@pytest.mark.parametrize("text", ["<script>x</script> cat", "<img src=x onerror=y> cat"])
def test_a_script_in_a_text_is_shown_and_not_run(page, text):
    measure(page, text)
    assert page.title().startswith("jaxsens")
    assert page.locator("main script, main img").count() == 0


def test_an_estimate_is_asked_and_shown_before_exact_values_that_take_long(page):
    asked = []

    def handle(route):
        if route.request.method != "POST":
            route.continue_()
            return
        engine = route.request.post_data_json["engine"]["kind"]
        if "explain" in route.request.url:
            about = {"flips": 9, "compiling": 0.0, "seconds": 1.0 if engine == "first-order" else 100.0}
            route.fulfill(json=about)
        else:
            asked.append(engine)
            route.continue_()

    page.route(re.compile(r"/v1/measurements(\?explain=1)?$"), handle)
    page.evaluate("""() => {
        const sentence = document.querySelector('#sentence')
        window.told = []
        new MutationObserver(() => window.told.push(sentence.dataset.shown)).observe(sentence, { attributes: true })
    }""")
    measure(page, "a cat slept on a mat")
    assert asked == ["first-order", "auto"]
    assert page.evaluate("window.told") == ["estimate", "exact"]


@pytest.mark.parametrize(
    "page", [{"viewport": {"width": one, "height": 800}} for one in (400, 320)], indirect=True, ids=str
)
def test_the_report_of_a_sweep_is_opened_and_runs_no_script(page):
    page.get_by_text("How does it change as inputs grow?").click()
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="of one").click()
    opened.value.get_by_role("heading", name="A report").wait_for()
    assert opened.value.title() != "ran"


def test_a_narrow_screen_needs_no_sideways_scrolling(page):
    measure(page)
    width = page.evaluate_handle("document.documentElement").get_property("scrollWidth").json_value()
    assert width == page.viewport_size["width"]


@pytest.mark.parametrize(
    "page", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=str
)
def test_axe_finds_nothing_serious(page):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    measure(page)
    page.get_by_text("How does it change").click()
    assert page.get_by_text("jaxsens sweep CONFIG --out DIR").is_visible()
    found = axe.Axe().run(page).response["violations"]
    serious = [(one["id"], [node["html"][:120] for node in one["nodes"]]) for one in found
               if one["impact"] in ("serious", "critical")]  # fmt: skip
    assert serious == []
