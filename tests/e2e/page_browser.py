"""The chat page in headless Chromium, for page_test.py and page_serve.py."""
import contextlib
import os
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

PATIENCE = 45  # seconds


class Page:
    """phone: width and height; the touch of fingers, and no mouse. patience: seconds that anything may take."""

    def __init__(self, url, browser, driver, phone=None, patience=PATIENCE):
        self.url, self.patience = url, patience
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
                         "--disable-background-networking", "--hide-scrollbars",
                         "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        if phone:
            options.add_experimental_option("mobileEmulation", {"deviceMetrics": {"width": phone[0], "height": phone[1], "pixelRatio": 1.5, "touch": True}})
        else:
            options.add_argument("--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4")  # a mouse
        self.driver = webdriver.Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(120)  # other programs may have the machine
        if not phone:
            self.resize(1180, 860)

    def resize(self, width, height):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def find(self, css):
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def count(self, css):
        return self.js("return document.querySelectorAll(arguments[0]).length", css)

    def text(self, css):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? null", css)

    def toasts(self):
        return self.js("return [...document.querySelectorAll('.toast')].map((node) => node.textContent).join('\\n')")

    # The element of the last message with this selector within.
    def last(self, css=""):
        return f"#messages > .message:last-child {css}".strip()

    def wait(self, what, condition):
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.03)
        raise AssertionError(f"waited in vain for: {what}; the last message: {(self.text(self.last()) or '')[:300]!r}")

    def open(self):
        self.driver.get(self.url)
        self.wait("connected", lambda: self.count("#state.ok"))

    def new(self):
        self.js("document.getElementById('new').click()")
        self.wait("an empty conversation", lambda: self.count(".message") == 0)

    def send(self, text):
        box = self.find("#input")
        if len(text) > 100:  # more is slow to type
            self.js("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", box, text)
        else:
            box.send_keys(text)
        box.send_keys(Keys.ENTER)

    def is_idle(self):
        return not self.js("return document.getElementById('main').classList.contains('is-busy')")

    def ask(self, text):
        n = self.count(".message")
        self.send(text)
        self.wait(f"the answer to {text!r}", lambda: self.count(".message") >= n + 2 and self.is_idle())

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def states(self):
        """Of the messages that IndexedDB has of the conversation which is shown."""
        return self.driver.execute_async_script("""
            const [done] = arguments, request = indexedDB.open("quern");
            request.onsuccess = () => {
                const all = request.result.transaction("messages").objectStore("messages").getAll();
                all.onsuccess = () => {
                    request.result.close();
                    done(all.result.filter((message) => message.conversation === sessionStorage.getItem("quern.open")).map(({ state }) => state ?? ""));
                };
            };""")

    def reload(self, n=None):
        """Once everything is kept, n messages or those that are shown: what a browser still has to write is lost."""
        self.wait("what is shown to be kept", lambda: len(states := self.states()) == (n or self.count(".message")) and "streaming" not in states)
        self.driver.refresh()

    def processor_seconds(self):
        """What all processes of the browser have used so far."""
        children, ticks = {}, {}
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit():
                    fields = open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()
                    children.setdefault(int(fields[1]), []).append(int(name))
                    ticks[int(name)] = int(fields[11]) + int(fields[12])
        found = [self.driver.service.process.pid]
        for pid in found:
            found += children.get(pid, [])
        return sum(ticks.get(pid, 0) for pid in found) / os.sysconf("SC_CLK_TCK")

    # Errors of the console since the last call, but for answers with a status of an error, which browsers write there.
    def console(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]]


def check(condition, text):
    if not condition:
        raise AssertionError(text)
