"""The chat page as quern serve has it, run by page.sh: page_serve.py FOLDER MODEL [BROWSER DRIVER]

Headers and bytes of every file; then, with a browser, the page over the model: a key, streaming, stop, reload in mid-answer, a server
that is gone and back."""
import gzip
import json
import os
import re
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../server"))
from serve_process import LIMIT, Server, ask

KEY = "sesame-1"

folder, demo = sys.argv[1:3]


# ---- Without a browser ----

def get(port, path, method="GET", **headers):
    return ask(port, method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})


def check_file(port, path, expected, bytes_, etag, others, **accept):
    """One encoding of a file, and what the tags of another one do."""
    status, headers, body = get(port, path, **accept)
    assert status == 200 and body == bytes_, f"{path}, {accept}: status {status}, {len(body)} bytes of {len(bytes_)}"
    expected = dict(expected, etag=etag, **{"content-length": str(len(bytes_))})
    for name, value in expected.items():
        assert headers.get(name) == value, f"{path}, {accept}: {name} is {headers.get(name)}, expected {value}"
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        status, headers, body = get(port, path, If_None_Match=known, **accept)
        assert status == 304 and not body and headers["etag"] == etag, f"{path}, {accept}, If-None-Match {known}: status {status}"
        assert headers.get("vary") == expected["vary"] and "content-encoding" not in headers, f"{path}, {accept}: headers of 304: {headers}"
    for other in ('"x"', *others):
        assert get(port, path, If_None_Match=other, **accept)[0] == 200, f"{path}, {accept}: {other} is taken for its own ETag"
    status, headers, body = get(port, path, "HEAD", **accept)
    assert status == 200 and headers["content-length"] == str(len(bytes_)), f"HEAD {path}, {accept}"


def files(port):
    table, n_compressed = json.load(open(os.path.join(folder, "table"))), 0
    for i, file in enumerate(table["files"]):
        path, etag, gzip_etag = file["path"], f'"{file["etag"]}"', file["gzip_etag"] and f'"{file["gzip_etag"]}"'
        bytes_ = open(os.path.join(folder, str(i)), "rb").read()
        expected = {"content-type": file["type"], "content-security-policy": table["policy"], "x-content-type-options": "nosniff",
                    "referrer-policy": "no-referrer", "cache-control": "no-cache", "vary": "Accept-Encoding" if gzip_etag else None, "content-encoding": None}
        for accept in ({}, {"Accept_Encoding": "br, gzip;q=0"}, {"Accept_Encoding": "identity"}):
            check_file(port, path, expected, bytes_, etag, [gzip_etag] if gzip_etag else [], **accept)
        if not gzip_etag:
            check_file(port, path, expected, bytes_, etag, [], Accept_Encoding="gzip")
            continue
        n_compressed += 1
        compressed = open(os.path.join(folder, f"{i}.gz"), "rb").read()
        assert gzip.decompress(compressed) == bytes_ and len(compressed) < len(bytes_), f"{path}: its compressed form is another file"
        check_file(port, path, dict(expected, **{"content-encoding": "gzip"}), compressed, gzip_etag, [etag], Accept_Encoding="gzip, deflate, br")
    assert n_compressed > 10 or not shutil.which("gzip"), f"{n_compressed} files are compressed"
    status, headers, _ = get(port, "/health", Accept_Encoding="gzip")
    assert status == 200 and "content-encoding" not in headers, "an answer of the API is compressed"
    assert "font-src 'self';" in table["policy"] and "unsafe" not in table["policy"], table["policy"]
    assert get(port, "/?a=b")[0] == 200, "a query"
    for path in ("/page/", "/page/none.js", "/page", "/index.html", "/page//app.js"):
        assert get(port, path, X_Api_Key=KEY)[0] == 404, f"{path} is there"
    assert get(port, "/page/../props")[0] == 400 and get(port, "/page/%2e%2e/props")[0] == 400, "a path that climbs"
    assert get(port, "/", Host="evil.example")[0] == 403 and get(port, "/", Origin="http://evil.example")[0] == 403, "who asks"
    assert get(port, "/", "POST")[0] == 405, "POST"
    assert get(port, "/v1/models")[0] == 401, "the test's server needs no key"


def without_page():
    with Server(demo, "--no-page") as server:
        assert get(server.port, "/")[0] == get(server.port, "/page/app.js")[0] == 404, "--no-page: there is one"


# ---- With one ----

def running(port):
    text = get(port, "/metrics", X_Api_Key=KEY)[2].decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("quern_requests_running"))


def words(page):
    return len((page.text(page.last(".markdown")) or "").split())


def key(page):
    page.driver.get(page.url)
    page.wait("the question for a key", lambda: page.count("#key[open]"))
    page.press(KEY, "\n")
    page.wait("connected", lambda: page.count("#state.ok"))
    assert page.text("#model") == "quern-demo", f"the model is {page.text('#model')}"


def streaming(page, server):
    page.send("Tell me a story.")
    page.wait("words", lambda: words(page) > 4)
    page.press("\ue00c")  # Escape
    page.wait("the stop", page.is_idle)
    assert "Stopped" in page.text(page.last(".note")), "not marked as stopped"
    page.wait("a server that noticed", lambda: running(server.port) == 0)
    page.wait("the line of a cancelled request", lambda: '"cancelled":true' in server.text().replace(" ", ""))


def whole(page):
    page.js("localStorage.setItem('quern.settings', JSON.stringify({ max_tokens: 24, temperature: 0, thinking: 'off' }))")
    page.open()
    page.new()
    page.ask("Tell me a story of a cat and a dog. " * 12)  # pages of 64 tokens are what is kept
    assert "limit of tokens" in page.text(page.last(".note")) and words(page) > 5, "an answer at the limit"
    page.ask("Another one.")
    figures = page.text(page.last(".stats"))
    assert re.search(r"\d tokens/s", figures) and re.search(r"[1-9]\d* cached", figures) and "24 tokens" in figures, f"figures: {figures}"
    page.js("localStorage.removeItem('quern.settings')")


def model(page):
    """What the page shows of the model: it does not think, and its context is as large as the server says."""
    info = json.loads(get(int(page.url.split(":")[2].strip("/")), "/v1/models", X_Api_Key=KEY)[2])["data"][0]
    assert info["reasoning"] is None and info["max_model_len"] > 0, info
    assert not page.find("#thinking").is_displayed(), "a button for thinking"
    assert f"of {info['max_model_len']:,} tokens" in page.find("#meter").get_attribute("aria-valuetext"), "the meter"


def context(page):
    """Of 256 tokens a quarter stays for the answer; the oldest turns are left out."""
    page.js("localStorage.setItem('quern.settings', JSON.stringify({ temperature: 0, max_tokens: 40 }))")
    page.open()
    page.new()
    for i in range(4):
        page.ask(f"Tell me a story of a cat and a dog who went to the sea, number {i}. " * 3)
        assert page.count(page.last(".stats")), page.text(page.last())
    assert page.count(".left-out") == 1 and page.text("#messages > :first-child .bubble"), "nothing is left out"


def reload(page):
    page.open()
    page.new()
    page.send("Tell me a long story.")
    page.wait("words", lambda: words(page) > 8)
    before = words(page)
    page.driver.refresh()
    page.wait("the mark", lambda: "Cut off" in (page.text(page.last(".note")) or ""))
    assert words(page) >= before, f"{words(page)} words are left of {before}"


def gone(page, server):
    server.stop()
    page.send("Are you there?")
    page.wait("the failure", lambda: "does not answer" in (page.text(page.last(".note.failed")) or ""))
    with Server(demo, "--api-key", KEY, "--port", str(server.port)):
        page.wait("the server again", lambda: page.count("#state.ok") and "is back" in page.text("#notice"))
        page.js(f"document.querySelector({json.dumps(page.last('.note button'))}).click()")
        page.wait("words", lambda: words(page) > 4)
        page.js("document.getElementById('stop').click()")
        page.wait("the stop", page.is_idle)


def main():
    browser = sys.argv[3:5]
    with Server(demo, "--api-key", KEY) as server:
        files(server.port)
        if not browser:
            return with_template(browser)
        from page_browser import Page
        page = Page(f"{server.url}/", *browser, patience=LIMIT)
        try:
            for test in (lambda: key(page), lambda: streaming(page, server), lambda: whole(page), lambda: model(page), lambda: reload(page)):
                test()
                assert not page.console(), "errors in the console"
            gone(page, server)
        finally:
            page.driver.quit()
    with_template(browser)


TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% endfor %}{% if reasoning_effort is defined %}{% if reasoning_effort not in ['low', 'high'] %}{{ raise_exception('unknown effort') }}{% endif %}
Effort: {{ reasoning_effort }}
{% endif %}assistant: {% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"""


def with_template(browser):
    """A small context, and a model that thinks, by its template."""
    path = os.path.join(folder, "thinking.jinja")
    with open(path, "w") as file:
        file.write(TEMPLATE)
    with Server(demo, "-c", "256", "--chat-template", path) as server:
        info = json.loads(get(server.port, "/v1/models")[2])["data"][0]["reasoning"]
        assert info == {"is_optional": True, "efforts": ["low", "high"], "default_effort": "low"}, info
        if not browser:
            return
        from page_browser import Page
        page = Page(f"{server.url}/", *browser, patience=LIMIT)
        try:
            page.open()
            page.wait("a button for thinking", lambda: page.find("#thinking").is_displayed())
            context(page)
            assert not page.console(), "errors in the console"
        finally:
            page.driver.quit()


began = time.monotonic()
main()
without_page()
print(f"quern serve: {time.monotonic() - began:.1f} s")
