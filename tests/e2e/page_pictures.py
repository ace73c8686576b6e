"""Pictures of the chat page for docs/images, which page_test.py makes in place of its tests."""
import os, time

from page_shared import NO_TOASTS, open_browser, server, write

DAY = 86_400_000
QUESTION = "How does a quern turn grain into flour, and how much in an hour?"
REASONING = "The question has two parts: how it works, and how much. I give the principle, then numbers in a table, then a line of code for other sizes."
ANSWER = """A quern is a **hand mill**: two stones, one turning on the other. Grain falls through the eye of the upper one, the *runner*, is sheared between the stones, and leaves at the rim as flour.

| Mill | Stone | Turns a minute | Flour an hour |
| :--- | ---: | ---: | ---: |
| Saddle quern | 40 cm | by hand | 0.5 kg |
| Rotary quern | 35 cm | 40 | 2 kg |
| Water mill | 120 cm | 100 | 150 kg |

Other sizes follow from the area that is swept:

```python
def flour(diameter_cm, turns_per_minute):
    # kilograms an hour, for stones that are freshly dressed
    return 4e-5 * diameter_cm**2 * turns_per_minute  # measured

print(f"{flour(35, 40):.1f} kg")
```

1. **Dress** the stones: furrows carry the flour outwards.
2. **Feed** slowly: a handful for each ten turns.
"""


def picture_file():
    now = int(time.time() * 1000)
    titles = ["Reverse a list in C", "Tea and coffee, compared", "A week in the Alps", "Why is the sky dark at night?", "Letter to the council", "Regular expressions for dates"]
    others = [{"title": title, "created": now - i * DAY, "updated": now - (i + 1) * DAY // 2 - DAY // 3,
               "messages": [{"role": "user", "content": title}, {"role": "assistant", "content": title}]} for i, title in enumerate(titles)]
    return write("pictures.json", {"format": "quern-conversations", "version": 1, "conversations": [{
        "title": "How a quern turns grain into flour", "created": now, "updated": now, "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": ANSWER, "reasoning": REASONING, "reasoning_ms": 2300,
             "stats": {"tokens": 318, "prompt": 1204, "cached": 1152, "speed": 61.4, "first_ms": 180}}]}] + others})


FORMULAS = r"""For $X \sim \mathcal{N}(\mu, \sigma^2)$ the density is

$$
f(x) = \frac{1}{\sigma\sqrt{2\pi}} \exp\left(-\frac{(x-\mu)^2}{2\sigma^2}\right)
$$

and it integrates to 1, as $\int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi}$. In two dimensions, with a rotation:

\[
\begin{aligned}
R(\theta) &= \begin{pmatrix} \cos\theta & -\sin\theta \\ \sin\theta & \cos\theta \end{pmatrix} \\
\det R(\theta) &= \cos^2\theta + \sin^2\theta = 1
\end{aligned}
\]

| Rule | Formula |
| :--- | :--- |
| Conditional | $P(A|B) = \frac{P(A \cap B)}{P(B)}$ |
| Combustion | $\ce{CH4 + 2 O2 -> CO2 + 2 H2O}$ |

A book on it costs $25, in paper $40.
"""


DIARY = ["Monday: rain, the wheel turns well.", "Tuesday: two carts of barley from the hill farm.", "Wednesday: dressed the upper stone.", "Thursday: the lower one too.",
         "Friday: frost at night.", "Saturday: ice on the pond.", "Sunday: church.", "Monday: the river is frozen, the mill stands still.",
         "Tuesday: mended sacks.", "Wednesday: still no water.", "Thursday: a cat came to stay.", "Friday: the ice breaks.", "Saturday: the wheel turns again.",
         "Sunday: church, and cake."]
TURNS = [("How old are the oldest querns?", "Saddle querns are about 11,000 years old: flat stones on which grain was rubbed with a smaller one."),
         ("And the ones that turn?", "Rotary querns appear in Spain around the 5th century BC, and spread over Europe with the Celts and the Romans."),
         ("What replaced them?", "Water mills, where there was water: one of them did the work of forty women at querns. Where there was none, querns were turned by hand into the 20th century.")]


def shoot(page, target, name, themes=("light",)):
    for theme in themes:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
        page.js("document.activeElement.blur()")
        time.sleep(0.5)  # until everything is drawn
        page.driver.save_screenshot(os.path.join(target, f"page-{name}{'-' + theme if len(themes) > 1 else ''}.png"))


def picture_of(page, messages, title, **more):
    conversation = dict(more, title=title, messages=messages)
    page.find("#import-file").send_keys(write("picture.json", {"format": "quern-conversations", "version": 1, "conversations": [conversation]}))
    page.wait(title, lambda: page.text("#title") == title)
    page.js(NO_TOASTS)


def pictures_of_parts(page, target):
    stats = {"tokens": 412, "prompt": 1204, "cached": 1152, "speed": 61.4, "first_ms": 180}
    picture_of(page, [{"role": "user", "content": "What is the density of the normal distribution?"},
                      {"role": "assistant", "content": FORMULAS, "stats": stats}], "The normal distribution")
    page.wait("formulas", lambda: page.count(".formula.is-set") >= 6)
    shoot(page, target, "formulas", ("light", "dark"))
    lines = "\n".join(f"{i}. {text}" for i, text in enumerate(DIARY, 1))
    picture_of(page, [{"role": "user", "content": f"What does this diary say about the mill?\n\n{lines}"},
                      {"role": "assistant", "content": "It stood still for a week.", "stats": stats, "parent": 0},
                      {"role": "assistant", "content": "The stones were dressed, the river froze, and the mill stood still for a week.", "stats": stats, "parent": 0}],
               "The miller's diary")
    page.find("#files").send_keys(write("photo.jpg", "\0"))
    page.wait("a note", lambda: page.toasts())
    shoot(page, target, "versions")
    page.js(NO_TOASTS)
    picture_of(page, [message for i, (question, answer) in enumerate(TURNS) for message in (
        {"role": "user", "content": question},
        {"role": "assistant", "content": answer, "stats": dict(stats, prompt=6800, tokens=310) if i == len(TURNS) - 1 else None})], "Old mills", first=2)
    page.wait("the line", lambda: page.count(".left-out"))
    page.js("document.getElementById('thread').scrollTop = 0")
    shoot(page, target, "context")
    page.new()
    shoot(page, target, "home")


def pictures(target):
    server.speed = 61.4
    for kind, size in (("desktop", (1180, 900)), ("phone", (390, 780)), ("small", (320, 640))):
        page = open_browser(size if kind != "desktop" else None)
        if kind == "desktop":
            page.resize(*size)
        page.open()
        if kind == "small":
            shoot(page, target, "small-home")
            page.js("document.getElementById('open-settings').click()")
            page.wait("settings", lambda: page.count("#settings[open]"))
            shoot(page, target, "small-settings")
            page.driver.quit()
            continue
        page.find("#import-file").send_keys(picture_file())
        page.wait("the conversation", lambda: page.count(page.last("table")))
        page.js(NO_TOASTS)
        page.js("document.getElementById('thread').scrollTop = 0")
        shoot(page, target, kind, ("light", "dark"))
        if kind == "desktop":
            page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})
            pictures_of_parts(page, target)
        page.driver.quit()
