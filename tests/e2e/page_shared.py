"""What the tests of the chat page and its pictures share: the server of the test, and pages that it serves. For programs whose first
arguments are FOLDER BROWSER DRIVER: what page_files wrote, and the programs of Chromium."""
import json, os, re, sys, tempfile

from page_browser import Page, check
from page_server import PageServer

folder, browser, driver = sys.argv[1:4]
server = PageServer(folder)
# Over the wire, compressed; three times as many where quern was built without gzip.
MAX_BYTES, MAX_BYTES_WITH_FORMULAS = (200_000, 500_000) if server.files["/page/app.js"]["gzip"] else (600_000, 1_500_000)
HAS_MARKED = len(server.files["/page/marked.js"]["bytes"]) > 0  # else the page shows text and code blocks alone
HAS_KATEX = len(server.files["/page/katex.js"]["bytes"]) > 0  # else it shows formulas as they are written
work = tempfile.mkdtemp(dir=folder)
NO_TOASTS = "document.querySelectorAll('.toast').forEach((toast) => toast.remove())"


def open_browser(phone=None):
    return Page(f"http://127.0.0.1:{server.port}/", browser, driver, phone)


def write(name, value):
    path = os.path.join(work, name)
    with open(path, "w") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))
    return path


def received(page):
    """Bytes of bodies that the browser got from the server since the page was loaded, and the names of the files."""
    entries = page.js("""return performance.getEntriesByType('resource').concat(performance.getEntriesByType('navigation'))
        .map((entry) => [new URL(entry.name).pathname, entry.encodedBodySize])""")
    return sum(size for _, size in entries), {name for name, _ in entries}


# Nothing of others in the page, no code that ran, no address but of the three schemes, no request that left.
def is_harmless(page, where):
    check(page.js("return window.HIT") is None, f"{where}: code ran: {page.js('return window.HIT')}")
    bad = "script, img, iframe, object, embed, style, link, base, form[action], svg:not(.icon, .katex svg), [onerror], [onload], [onmouseover], [srcdoc], [style*=url], .formula :is(a, img, [href], [src])"
    check(page.count(", ".join(f"{area} :is({bad})" for area in ("#messages", "#conversations", "#attached", ".toasts"))) == 0, f"{where}: an element of others")
    addresses = page.js("return [...document.querySelectorAll('#messages a')].map((a) => a.getAttribute('href'))")
    check(all(re.match(r"(https?|mailto):", address) for address in addresses), f"{where}: {addresses}")
    # The browser may show a page of the scheme that it refuses to open; what it fetched counts.
    entries = page.js("return performance.getEntriesByType('resource').map((e) => e.name)")
    check(all(name.startswith(f"http://127.0.0.1:{server.port}/") for name in entries), f"{where}: {entries}")
    return addresses
