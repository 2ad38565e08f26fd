"""The playground in a real browser: what the page shows is what the model does; nothing leaves the machine."""

import os
import runpy
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import ani
import ani.cli
from ani.injection.adapter import load_adapter
from ani.injection.adapter_files import SHIPPED
from ani.playground import _hosts, answer, build, decisions, launch
from tests.refusals import refused
from tests.tiny import attached, pair
from tests.tokenizers import llama3

CHROMIUM = Path("/usr/bin/chromium")
TEXT = "Room 505 holds 10 people, 3.5 kg of $1,234 and -7 of 2020-11"
MARKUP = "<b id=evil>5</b> & <script>evil()</script> ${1+1} {{value}} 7,500"
TIMEOUT = 60_000


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.is_file():
        pytest.skip(f"needs Chromium at {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[[PreTrainedModel, PreTrainedTokenizerBase], Page]]:
    """Open the playground of a model; at the end, check that no request went to another host."""
    opened: list[tuple[gr.Blocks, Page]] = []
    requests: list[str] = []

    def visit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Page:
        server = build(model, tokenizer)
        url = launch(server, "127.0.0.1", free_port())
        page = browser.new_page(viewport={"width": 1000, "height": 760})
        page.set_default_timeout(TIMEOUT)
        page.on("request", lambda request: requests.append(request.url))
        opened.append((server, page))
        page.goto(url)
        expect(page.locator("mark").first).to_be_visible(timeout=TIMEOUT)
        return page

    yield visit
    for server, page in opened:
        page.close()
        server.close(verbose=False)
    hosts = {urlsplit(request).hostname for request in requests}
    assert hosts - {None} == {"127.0.0.1"}  # None: a data: address


def answers(page: Page) -> tuple[str, str]:
    boxes: list[Locator] = [page.locator(f"#{name} textarea") for name in ("base", "ani")]
    for box in boxes:
        expect(box).to_have_value("")
    page.get_by_role("button", name="Answer").click()
    for box in boxes:
        expect(box).not_to_have_value("", timeout=TIMEOUT)
    return boxes[0].input_value(), boxes[1].input_value()


def test_page(visit: Callable[..., Page]) -> None:
    # With these features and words an open gate changes the answer.
    model, tokenizer = attached("llama", llama3(), sign="phase")
    numbers = decisions(model, tokenizer, TEXT)  # before the page uses the model too
    page = visit(model, tokenizer)
    marks = page.locator("#gates mark")
    page.get_by_label("Text").fill(TEXT)
    assert {number.injected for number in numbers} == {True, False}
    shown = [f"{n.text} = {n.value} · α {n.alpha:.3f} · {'open' if n.injected else 'closed'}" for n in numbers]
    expect(marks).to_have_text(shown)
    styles = marks.evaluate_all("marks => marks.map(mark => getComputedStyle(mark).borderTopStyle)")
    assert styles == ["solid" if number.injected else "dashed" for number in numbers]

    page.get_by_role("spinbutton").fill("8")
    page.keyboard.press("Tab")
    base, learnt = answers(page)
    bare = pair("llama", llama3())
    assert base == answer(*bare, TEXT, 8)
    assert learnt == answer(model, tokenizer, TEXT, 8) != base

    for choice, state in (("open", "open, forced"), ("closed", "closed, forced")):
        page.get_by_label(choice, exact=True).check()
        expect(marks).to_contain_text([state] * len(numbers))
        if state.startswith("open"):
            _, opened = answers(page)
            assert opened not in (base, learnt)
    assert answers(page) == (base, base)

    page.get_by_label("Text").fill(MARKUP)
    expect(marks).to_have_count(4)
    assert page.locator("#evil").count() == 0
    without_notes = (
        "view => { view = view.cloneNode(true); view.querySelectorAll('small').forEach(note => note.remove()); "
        "return view.textContent }"
    )
    assert page.locator("#gates mark").first.locator("..").evaluate(without_notes) == MARKUP

    page.get_by_label("Text").fill(" ")
    page.get_by_role("button", name="Answer").click()
    expect(page.get_by_text("there is no text to answer")).to_be_visible()


def test_shipped_adapter(visit: Callable[..., Page]) -> None:
    """With ANI_SCREENSHOT=FILE it also writes the picture of docs/serve.md."""
    model, tokenizer = pair("smollm2")
    load_adapter(model, tokenizer, SHIPPED[0])
    page = visit(model, tokenizer)
    marks = page.locator("#gates mark")
    expect(marks).to_contain_text(["505", "10"])
    expect(marks).to_contain_text(["closed", "open"])
    picture = os.environ.get("ANI_SCREENSHOT")
    page.get_by_role("spinbutton").fill("48" if picture else "6")
    page.keyboard.press("Tab")
    base, ours = answers(page)
    assert base != ours
    if picture:
        page.wait_for_timeout(1000)  # until the boxes have faded in
        page.screenshot(path=picture)


def test_numbers_are_placed_in_the_text_and_decided_in_the_chat() -> None:
    model, tokenizer = attached("qwen3")
    text = "assistant 12, user 7"  # words of the chat template
    assert [text[number.start : number.end] for number in decisions(model, tokenizer, text)] == ["12", "7"]
    asked = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    in_chat = ani.inspect(model, tokenizer, str(chat), around=("", ""))
    assert [number.alpha for number in decisions(model, tokenizer, text)] == [number.alpha for number in in_chat]


def test_too_long_a_text_and_a_model_without_module() -> None:
    refused(lambda: answer(*attached("gemma"), "7 " * 600, 1), "512")
    refused(lambda: build(*pair("gemma")), "no ANI module")


def test_only_its_own_names_and_no_files() -> None:
    model, tokenizer = attached("llama")
    page, port = build(model, tokenizer), free_port()
    launch(page, "127.0.0.1", port)

    def status(host: str, path: str = "/", **given: Any) -> int:
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            method = "POST" if "body" in given else "GET"
            connection.request(method, path, headers={"Host": host, **given.pop("headers", {})}, **given)
            return connection.getresponse().status

    own = f"127.0.0.1:{port}"
    assert [status(host) for host in (own, "127.0.0.1", f"LOCALHOST:{port}", "localhost")] == [200] * 4
    strangers = ("evil.example", f"evil.example:{port}", f"{own}.evil.example", "127.0.0.1.evil.example", "", "[::1]")
    assert [status(host) for host in strangers] == [400] * 6
    body = '--x\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nevil\r\n--x--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    assert status(own, "/gradio_api/upload", body=body, headers=form) == 413
    page.close(verbose=False)
    assert {"0.0.0.0", "localhost", socket.gethostname(), "127.0.0.1"} <= {*_hosts("0.0.0.0")}
    for asked in (lambda: decisions(model, tokenizer, "7" * 30_000), lambda: answer(model, tokenizer, "7" * 30_000, 1)):
        refused(asked, "30,000", "20,000")


def test_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: Path, tiny_adapter: Path
) -> None:
    port = free_port()
    arguments = ["ani", "playground", "--model", str(tiny_model), "--adapter", str(tiny_adapter), "--port", str(port)]
    monkeypatch.setattr(sys, "argv", arguments)

    def at_work(page: gr.Blocks) -> None:
        assert f"http://127.0.0.1:{port}/" in capsys.readouterr().out
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))  # this machine too, but not asked for
        with pytest.raises(SystemExit, match="2"):
            ani.cli.main()
        assert f"127.0.0.1:{port}" in capsys.readouterr().err
        page.close(verbose=False)

    monkeypatch.setattr(gr.Blocks, "block_thread", at_work)
    with pytest.raises(SystemExit, match="0"):
        ani.cli.main()


def test_the_space(monkeypatch: pytest.MonkeyPatch, tiny_model: Path, tiny_adapter: Path) -> None:
    monkeypatch.setenv("MODEL", str(tiny_model))
    monkeypatch.setenv("ADAPTER", str(tiny_adapter))
    app = runpy.run_path(str(Path(__file__).parents[1] / "docs" / "examples" / "space" / "app.py"))
    with closing(app["page"]) as page:
        url = urlsplit(launch(page, "127.0.0.1", free_port()))
        with closing(HTTPConnection(url.hostname, url.port)) as connection:
            connection.request("GET", "/")
            answer = connection.getresponse()
            assert answer.status == 200 and "ANI playground" in answer.read().decode()
