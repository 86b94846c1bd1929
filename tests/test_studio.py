"""The studio page in a real browser, over a real server process."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .harness import ServerProcess, describe, equal, loudness, say

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium.webdriver import Chrome, ChromeOptions, ChromeService  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

DRIVER = shutil.which("chromedriver")
BROWSER = shutil.which("chromium")
ARTIFACTS = Path(__file__).parent / "artifacts"
WAIT_S = 30
DESKTOP, PHONE = (1280, 900), (390, 844)

pytestmark = pytest.mark.skipif(
    not (DRIVER and BROWSER), reason="chromium and chromedriver are not installed"
)


class Page:
    """The studio in a browser."""

    def __init__(self, driver: Any, uri: str) -> None:
        self.driver = driver
        self.uri = uri

    def open(self) -> None:
        self.driver.get(self.uri)
        self.until(lambda: self.text("connection") not in ("", "Connecting…"))
        self.until(lambda: self.voices())

    def __getitem__(self, element: str) -> Any:
        return self.driver.find_element(By.ID, element)

    def text(self, element: str) -> str:
        script = "return document.getElementById(arguments[0]).innerText"
        return str(self.driver.execute_script(script, element)).strip()

    def until(self, condition: Callable[[], Any]) -> None:
        WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda _: condition())

    def voices(self) -> list[str]:
        script = "return [...document.querySelectorAll('#voices strong')].map(e => e.textContent)"
        return list(self.driver.execute_script(script))

    def button(self, label: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, f'[aria-label="{label}"]')

    def click(self, element: Any) -> None:
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def wait_said(self, text: str = "Done.") -> None:
        self.until(lambda: text in self.text("said"))

    def heard(self) -> tuple[int, float]:
        """Samples that arrived for the last request, and their level."""
        wave = self["wave"]
        return int(wave.get_attribute("data-samples") or 0), float(
            wave.get_attribute("data-level") or 0
        )

    def answer(self, yes: bool = True, text: str | None = None) -> None:
        self.until(lambda: self["ask"].is_displayed())
        if text is not None:
            self["ask-value"].clear()
            self["ask-value"].send_keys(text)
        value = "yes" if yes else "no"
        self.driver.find_element(By.CSS_SELECTOR, f'#ask button[value="{value}"]').click()
        self.until(lambda: not self["ask"].is_displayed())

    def keep(self, name: str, seed: int) -> None:
        field = self["seed"]
        field.clear()
        field.send_keys(str(seed), Keys.TAB)
        self["name"].send_keys(name)
        self.click(self["keep"].find_element(By.TAG_NAME, "button"))
        self.until(lambda: name in self.voices())

    def shot(self, name: str) -> None:
        ARTIFACTS.mkdir(exist_ok=True)
        self.driver.save_screenshot(str(ARTIFACTS / f"{name}.png"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = ChromeOptions()
    options.binary_location = BROWSER or ""
    profile = tmp_path_factory.mktemp("profile")
    for flag in (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --lang=en "
        "--disable-background-networking --disable-component-update --disable-sync "
        f"--autoplay-policy=no-user-gesture-required --user-data-dir={profile}"
    ).split():
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(DRIVER))
    driver.set_window_size(*DESKTOP)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def server(tiny_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(
        tmp_path_factory.mktemp("data"),
        *("--model-dir", str(tiny_dir), "--set", "web.enabled=true", "--set", "web.port=0"),
    ) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def page(driver: Any, server: ServerProcess) -> Iterator[Page]:
    page = Page(driver, server.wait_for("voice studio on").rsplit(" ", 1)[1])
    page.open()
    yield page
    bad = [
        line["message"]
        for line in driver.get_log("browser")
        if line["level"] == "SEVERE"
        and "the server responded with a status of 4" not in line["message"]
    ]
    assert not bad, bad


def test_roll_play_keep_rename_delete_undo(page: Page, server: ServerProcess) -> None:
    page.click(page["roll"])
    page.wait_said()
    samples, level = page.heard()
    assert samples > 24_000 and level > 0.001
    seed = page["seed"].get_attribute("value")
    assert f"seed {seed}" in page.text("speaker")
    assert "First audio" in page.text("timings") and "Real-time factor" in page.text("timings")
    assert "noise, not a voice" in page.text("said")

    # the same again comes from the cache, to the last sample
    page.click(page["speak"])
    page.wait_said()
    assert page.heard() == (samples, level)
    assert "From the cache\n1 of 1" in page.text("timings") or "2 of 2" in page.text("timings")

    page["name"].send_keys("kitchen")
    page["description"].send_keys("rolled in a test")
    page.click(page["keep"].find_element(By.TAG_NAME, "button"))
    page.until(lambda: "kitchen" in page.voices())
    assert "Reload" in page.text("kept")
    found = {v.name: v.description for v in asyncio.run(describe(server.uri)).tts[0].voices}
    assert found["kitchen"] == "rolled in a test"
    spoken = asyncio.run(say(server.uri, "It is late.", "kitchen"))
    assert loudness(spoken.pcm) > 0.001

    page.click(page.button("Rename: kitchen"))
    page.answer(text="dining room")
    page.until(lambda: "dining room" in page.voices() and "kitchen" not in page.voices())
    again = asyncio.run(say(server.uri, "It is late.", "dining room"))
    assert equal(again.pcm, spoken.pcm)

    page.click(page.button("Make default: dining room"))
    page.until(lambda: page.voices()[0] == "dining room")
    assert asyncio.run(describe(server.uri)).tts[0].voices[0].name == "dining room"

    page.click(page.button("Delete: dining room"))
    page.until(lambda: "dining room" not in page.voices())
    assert "dining room" not in [v.name for v in asyncio.run(describe(server.uri)).tts[0].voices]
    page.click(page["undo"].find_element(By.TAG_NAME, "button"))
    page.until(lambda: page.voices()[0] == "dining room")
    page.click(page.button("Delete: dining room"))
    page.until(lambda: page.voices()[0] == "seed-2")


def test_style_shapes_what_is_said(page: Page) -> None:
    page.click(page["speak"])
    page.wait_said()
    before = page.heard()
    page.driver.execute_script(
        "const e = document.getElementById('style-speed'); e.value = 9; e.oninput()"
    )
    page.click(page["speak"])
    page.wait_said()
    assert page.heard() != before


def test_a_name_that_is_taken_or_none_is_told(page: Page) -> None:
    page["name"].send_keys("seed-42")
    page.click(page["keep"].find_element(By.TAG_NAME, "button"))
    page.until(lambda: "there is a voice 'seed-42' already" in page.text("kept"))
    page["name"].clear()
    page["name"].send_keys("../up")
    page.click(page["keep"].find_element(By.TAG_NAME, "button"))
    page.until(lambda: "cannot be a voice's name" in page.text("kept"))


def test_voice_files_come_in_and_go_out(page: Page, tmp_path: Path) -> None:
    good, bad = tmp_path / "from a friend.yaml", tmp_path / "evil.pt"
    good.write_text("seed: 77\ndescription: a gift\n", encoding="utf-8")
    bad.write_bytes(b"cos\nsystem\n(S'touch /tmp/never'\ntR.")
    page["import"].send_keys(str(good))
    page.until(lambda: "from a friend" in page.voices())
    page["import"].send_keys(str(bad))
    page.until(lambda: "not a speaker embedding" in page.text("problem"))
    assert "evil" not in page.voices()
    page.click(page.button("Delete: from a friend"))
    page.until(lambda: "from a friend" not in page.voices())


def test_the_server_view_shows_and_empties_the_cache(page: Page) -> None:
    page.click(page["speak"])
    page.wait_said()
    page.click(page["tab-server"])
    page.until(lambda: "Requests" in page.text("now"))
    page.until(lambda: "Entries\n0" not in page.text("cache"))
    assert "draft" not in page.text("phrases")
    assert "cpu, int8" in page.text("now")
    page.click(page["clear"])
    page.answer(yes=False)
    page.click(page["clear"])
    page.answer()
    page.until(lambda: "removed" in page.text("cleared"))
    page.until(lambda: "Entries\n0" in page.text("cache"))
    page.click(page["tab-studio"])


def test_stop_ends_the_work(page: Page) -> None:
    page["text"].clear()
    page["text"].send_keys("A long tale begins here, and it does not want to end. " * 20)
    page.click(page["speak"])
    page.until(lambda: page.heard()[0] > 0)
    page.click(page["stop"])
    page.until(lambda: "Stopped." in page.text("said"))
    page.click(page["tab-server"])
    page.until(lambda: "Slots in use\n0 / 4" in page.text("now"))
    page.click(page["tab-studio"])


def test_speaks_chinese(page: Page) -> None:
    Select(page["language"]).select_by_value("zh")
    page.until(lambda: page["speak"].text.endswith("朗读"))
    assert page.driver.title == "ChatTTS 音色工作室"
    assert page.driver.execute_script("return document.documentElement.lang") == "zh-Hans"
    page.click(page["speak"])
    page.wait_said("完成")
    left = page.driver.execute_script(
        "return [...document.querySelectorAll('[data-t]')].map(e => e.textContent)"
        ".filter(t => /[A-Za-z]{4,}/.test(t) && !/ChatTTS|yaml/.test(t))"
    )
    assert left == []
    Select(page["language"]).select_by_value("en")


def test_both_languages_say_everything() -> None:
    import re

    words = Path(__file__).parent.parent / "wyoming_chattts/web/static/words.js"
    english, chinese = words.read_text(encoding="utf-8").split("  zh: {")
    keys = [set(re.findall(r"(?:^|[ {,])(\w+): \"", part)) for part in (english, chinese)]
    assert keys[0] == keys[1] and len(keys[0]) > 60
    page = (words.parent / "index.html").read_text(encoding="utf-8")
    used = set(re.findall(r'data-t(?:-label)?="(\w+)"', page))
    used |= set(re.findall(r'\bt\("(\w+)"', (words.parent / "studio.js").read_text()))
    assert used <= keys[0]


def test_is_worked_with_the_keyboard(page: Page) -> None:
    page.driver.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    seen = []
    for _ in range(60):
        element = page.driver.switch_to.active_element
        seen.append(element.get_attribute("id") or element.get_attribute("aria-label") or "")
        outline = element.value_of_css_property("outline-style")
        assert outline != "none", seen[-1]
        if seen[-1].startswith("Play: "):
            break
        element.send_keys(Keys.TAB)
    assert {"tab-studio", "language", "text", "roll", "speak", "style-speed", "name"} <= set(seen)
    before = page.heard()
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    page.until(lambda: page.heard()[0] > 0 and page.heard() != before)
    page.wait_said()


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["studio", "server"])
def test_nothing_serious_stands_in_anyones_way(
    page: Page, size: tuple[int, int], scheme: str, view: str
) -> None:
    axe = pytest.importorskip("axe_core_python.selenium", reason="axe-core is not installed")
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size is PHONE},
    )
    page.driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    try:
        page.open()
        page.click(page[f"tab-{view}"])
        if view == "studio":
            page.click(page["speak"])
            page.wait_said()
            page.driver.execute_script("scrollTo(0, 0)")
        else:
            page.until(lambda: "Requests" in page.text("now"))
            page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#plots canvas"))
        found = axe.Axe().run(page.driver)["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in serious]
        overflow = page.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert overflow <= 0
        page.shot(f"{view}-{'phone' if size is PHONE else 'desktop'}-{scheme}")
        page.click(page["tab-studio"])
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_browser_without_web_audio_gets_a_player(page: Page) -> None:
    script = page.driver.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument",
        {"source": "delete window.AudioContext; delete window.webkitAudioContext;"},
    )
    try:
        page.open()
        assert not page["plain"].is_displayed()
        page.click(page["speak"])
        page.wait_said()
        page.until(lambda: page["plain"].is_displayed())
        page.until(
            lambda: (
                page.driver.execute_script("return document.getElementById('plain').duration") > 1
            )
        )
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_the_page_comes_back_after_the_server_did(
    driver: Any, tiny_dir: Path, tmp_path: Path
) -> None:
    arguments = ("--model-dir", str(tiny_dir), "--set", "web.enabled=true", "--set")
    with ServerProcess(tmp_path, *arguments, "web.port=0") as server:
        server.wait_ready()
        uri = server.wait_for("voice studio on").rsplit(" ", 1)[1]
        page = Page(driver, uri)
        page.open()
        server.stop()
    page.until(lambda: "does not answer" in page.text("connection"))
    (tmp_path / "voices").mkdir()
    (tmp_path / "voices" / "new.yaml").write_text("seed: 9")
    port = uri.rstrip("/").rsplit(":", 1)[1]
    with ServerProcess(tmp_path, *arguments, f"web.port={port}") as server:
        server.wait_ready()
        page.until(lambda: "Ready" in page.text("connection"))
        page.until(lambda: "new" in page.voices())
        driver.get_log("browser")
