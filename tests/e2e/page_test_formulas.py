"""Formulas in the chat page, for page_test.py: answers as models write them (page_formulas.md), hostile ones, and text that grows."""
import json, os, re, time

from page_browser import check
from page_shared import HAS_KATEX, HAS_MARKED, MAX_BYTES, MAX_BYTES_WITH_FORMULAS, is_harmless, received, write

MAX_BLOCKED_MS = 4000  # by a text of formulas that take long; without bounds for them the page ends


def answers_with_formulas():
    """(name, number of formulas, text) of page_formulas.md."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "page_formulas.md"), encoding="utf-8") as file:
        parts = re.split(r"^=== (\w+) (\d+)\n", file.read(), flags=re.M)[1:]
    return list(zip(parts[::3], map(int, parts[1::3]), parts[2::3]))


def formulas(page):
    """30 answers as models write them: how many formulas each has, that what is none stays text, and that nothing is wider than the page."""
    answers = answers_with_formulas()
    check(len(answers) == 30, f"{len(answers)} answers")
    page.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
    page.open()
    page.new()
    before, names = received(page)
    check(before <= MAX_BYTES and "/page/katex.js" not in names, f"{before} bytes before the first formula: {names}")
    page.find("#import-file").send_keys(write("formulas.json", {"title": "Formulas", "messages": [
        message for name, _, text in answers for message in ({"role": "user", "content": name}, {"role": "assistant", "content": text})]}))
    page.wait("the answers", lambda: page.count(".message") == 2 * len(answers))
    n_all = 0
    for i, (name, expected, text) in enumerate(answers):
        item = f"#messages > .message:nth-child({2 * i + 2})"
        page.js("document.querySelector(arguments[0]).scrollIntoView()", item)
        page.wait(f"{name} rendered", lambda: page.count(f"{item} .markdown"))
        if HAS_KATEX and HAS_MARKED:
            page.wait(f"{expected} formulas in {name}, not {page.count(f'{item} .katex-html')}", lambda: page.count(f"{item} .katex-html") == expected)
        n_all += expected
    if HAS_KATEX and HAS_MARKED:
        source = {name: text for name, _, text in answers}
        text = lambda name: page.js("return document.querySelectorAll('#messages > .message')[arguments[0]].querySelector('.markdown').textContent",
                                    2 * [name for name, _, _ in answers].index(name) + 1)
        check(text("money") == source["money"].strip().replace("\\$", "$"), f"money: {text('money')}")
        check("$HOME/bin goes before $PATH" in text("shell") and "$a = $b + $c; and $foo->bar($baz)" in text("shell"), text("shell"))
        check("closes: \\(a + b stays" in text("unbalanced") and "A lone $ sign, a price of $3" in text("unbalanced"), text("unbalanced"))
        check("learning_rate" in text("code_beside") and "50%" in text("code_beside").split("or by")[1], text("code_beside"))
        check("$\\frac{1}{2$" in text("errors") and "$\\notacommand{x}$" in text("errors"), text("errors"))
        total, names = received(page)
        check(total <= MAX_BYTES_WITH_FORMULAS and any(name.endswith(".woff2") for name in names), f"{total} bytes with formulas: {names}")
        print(f"{n_all} formulas of {len(answers)} answers; {before} bytes before the first, {total} with them, {sum(n.endswith('woff2') for n in names)} fonts")
    for width in (1280, 768, 320):
        page.resize(width, 900)
        wide = page.js("return Math.max(document.documentElement.scrollWidth, document.getElementById('thread').scrollWidth)")
        check(wide <= width, f"{wide} pixels at a width of {width}")
    page.resize(1180, 860)


# What has a formula, and what has none.
FORMULAS = [
    "$x$", "a $x_1 + y$ b", "$n$th and $k$-means", "$2x + 3 = 5$", "$5$", "$3.14$", "$-3$", "$100\\%$", "$10^{-3}$", "$2 \\times 3$", "$3 mod 2$", "$\\frac{1}{2}$",
    "\\(a\\)", "\\( a \\)", "\\[a+b\\]", "$$a$$", "so $$x = 1$$ ok", "$P(A|B)$", "速度$v = s/t$是", "$x$是", "$[0, 1)$", "$\\text{if } x$", "$a \\le b$, $c$", "$\\$5 + x$",
    "($x$)", "**$x$**", "$x$.", "$O(n log n)$", "$a, b$", "$f(x) = x^2$ where $x \\in \\mathbb{R}$", "$\\{1, 2\\}$", "\\[ Fixed Cost + Variable Cost \\]", "$x$s", "costs $5 or $x$",
    "\\begin{align}a\\end{align}", "so\n\\begin{cases} a \\\\ b \\end{cases}", "a $2$D grid", "the $=$ and the $/$", "$|x|$", "$\\{$", "$f(x)$(1)"]
NO_FORMULAS = [
    "$5 and $10", "costs $5, not $6.", "$HOME and $PATH", "$HOME/$USER", "${HOME}/bin:$PATH", "US$5 and C$6", "5$ and 10$", "$5-$10", "$5 to $10 (or $20)", "($5)/($10)",
    "`$a$`", "``$a `$b$``", "\\$5 and \\$6", "$a = $b + $c;", "$foo->bar($baz)", "a $$ or $$ b", "$$ to $$$", "echo $$; kill $$", "$1, $2 and $3", "$1$2", "$5/month (or $x)",
    "$5 each (then 10$)", "$20 a month$", "$5 million$", "从$5涨到$8，$9", "价格$5元或$", "$ x $", "a $ b $ c", "\\\\(a\\\\)", "see \\[1\\] there", "\\(see below\\)",
    "HOME is \"$HOME\"; see '$'", "$5 or $", "A$B$C", "$(pwd)/$file", "$ 5$", "$5,000 to $10,000", "between $1M and $2M", "$x is big ($y)", "$(SRC)/$(OBJ)", "${A}${B}", "${A}/${B}", "$(a)$(b)", "$.ajax/$.get", "**$5** and **$10**", "($5–$10)", "^foo$|^bar$", "in C:\\(x86) it is", "\\begin{itemize} x \\end{itemize}", "text \\begin{align} x", "$A:$(B)", "earn $500 (about €450) or $600"]


def delimiters(page):
    found = page.driver.execute_async_script("""
        const [texts, done] = arguments;
        import("/page/formula.js").then(({ formulas }) => done(texts.map((text) => formulas(text).filter(({ is_open }) => !is_open).map(({ tex }) => tex))));""",
                                             FORMULAS + NO_FORMULAS)
    for text, tex in zip(FORMULAS + NO_FORMULAS, found):
        check(bool(tex) == (text in FORMULAS), f"{text!r} has the formulas {tex}")


def growing_formulas(page):
    """While a text grows, nothing of it is shown that is taken back: a formula is text as it is written until it is complete. What has grown
    is what the whole text gives. With a text that is cut everywhere."""
    if not (HAS_MARKED and HAS_KATEX):
        return
    text = ("So $x_1 * y_1$ and \\(a_{1} \\\\ b*c*d\\) cost $5 and $6.\n\n\\[\n\\begin{aligned}\na &= b \\\\\n- c &= d\n\\end{aligned}\n\\]\n\nThen $$e=1$$ and\n\n"
            "- $f$: \\[ g\n+ h \\]\n- | i\n\n| $|x|$ | $\\|y\\|$ |\n| --- | --- |\n| $P(A|B)$ | $z$ |\n\nEnd $w$")
    grown, whole, wrong = page.driver.execute_async_script("""
        const [source, done] = arguments;
        import("/page/live.js").then(({ LiveMarkdown }) => {
            const grown = document.createElement("div"), whole = document.createElement("div"), wrong = [];
            document.getElementById("messages").append(grown, whole);
            const live = new LiveMarkdown(grown);
            const shown = () => {
                const copy = grown.cloneNode(true);
                copy.querySelectorAll(".formula").forEach((node) => node.replaceChildren(node.dataset.tex));
                return copy.textContent;
            };
            const step = (i) => {
                if (i > source.length) {
                    live.finish(source);
                    new LiveMarkdown(whole).finish(source);
                    let n_waits = 0;
                    const timer = setInterval(() => {
                        if (document.querySelector("#messages > div .formula:not(.is-set)") && ++n_waits < 200)
                            return;
                        clearInterval(timer);
                        const result = [grown.innerHTML, whole.innerHTML, wrong];
                        grown.remove();
                        whole.remove();
                        done(result);
                    }, 50);
                    return;
                }
                live.set(source.slice(0, i));
                // In the middle of a formula its source is there, whole, and no part of it became emphasis or an escape.
                for (const formula of ["x_1 * y_1", "a_{1} \\\\\\\\ b*c*d", "P(A|B)", "g\\n+ h", "a &= b \\\\\\\\\\n- c &= d"]) {
                    const from = source.indexOf(formula);
                    if (i > from && i <= from + formula.length && !shown().includes(source.slice(from, i).trimEnd()))
                        wrong.push(source.slice(0, i) + " => " + shown());
                }
                if (grown.querySelector("em, .formula:not(.is-open, .is-set):not(:empty) em"))
                    wrong.push("emphasis: " + source.slice(0, i));
                i % 25 ? step(i + 1) : setTimeout(step, 0, i + 1);
            };
            step(1);
        });""", text)
    check(not wrong, f"{len(wrong)} states, the first: {wrong[:1]}")
    at = len(os.path.commonprefix([grown, whole]))
    check(grown == whole, f"at {at} grown: {grown[max(0, at - 300):at + 300]}\nwhole: {whole[max(0, at - 300):at + 300]}")
    check(whole.count("katex-html") == 11, f"{whole.count('katex-html')} formulas of {whole[:2000]}")


def hostile_formulas(page):
    """Formulas that would run code, load something, cover the page or take long; none of them does."""
    attacks = ["\\href{javascript:window.HIT=60}{x}", "\\url{javascript:window.HIT=61}", "\\includegraphics[width=9em]{https://evil.example/x.png}",
               "\\htmlClass{x}{y}", "\\htmlId{input}{x}", "\\htmlStyle{position:fixed;inset:0}{x}", "\\htmlData{x=y}{z}", "<img src=x onerror=window.HIT=62>",
               "\\text{<script>window.HIT=63</script>}", "\\def\\a{\\a\\a}\\a", "\\newcommand{\\b}[1]{#1#1#1#1}\\b{\\b{\\b{\\b{\\b{\\b{x}}}}}}", "\\gdef\\frac{x}\\frac12",
               "\\rule{9999em}{9999em}", "\\kern{-9999em}x", "\\color{red;background:url(https://evil.example)}x", "\\fcolorbox{red}{url(x)}{y}", "\\fcolorbox{red}{blue}{y}",
               "\\def\\q{x}\\q", "\\vec{x}\\pmb{y}\\phase{z}", "\\begin{CD}A @>>> B\\end{CD}"]
    long = ["{" * 1400, "\\sqrt{" * 400 + "}" * 400, "\\begin{matrix}" + "&" * 2900 + "\\end{matrix}", "\\ce{" + "H2O + " * 450 + "}", "\\ce{" + "->[" * 900 + "}",
            "\\frac1{" * 350 + "}" * 350, "x" * 2999, "x" * 200_000, "\\iff" * 700]
    attack = "\n\n".join([f"Inline ${tex}$ and\n\n$$\n{tex}\n$$" for tex in attacks] + [f"\\[\n{tex}\n\\]" for tex in long] + ["\\(" * 3000, "$$" * 3001, "a $b" * 3000, "The end."])
    page.new()
    page.js("""window.longest = 0;
        let last = performance.now();
        setInterval(() => {
            window.longest = Math.max(window.longest, performance.now() - last);
            last = performance.now();
        }, 10);""")
    page.find("#import-file").send_keys(write("hostile.json", [{"role": "user", "content": "hostile"}, {"role": "assistant", "content": attack}]))
    page.wait("the end", lambda: (page.text(page.last(".markdown")) or "").endswith("The end."))
    is_harmless(page, "formulas")
    if HAS_KATEX:
        n_set = lambda: page.count(page.last(".formula.is-set"))
        page.wait("formulas that are set", lambda: (n := n_set()) > 20 and not time.sleep(0.5) and n == n_set())
        is_harmless(page, "formulas that are set")
        text = page.js(f"return [...document.querySelectorAll({json.dumps(page.last('.formula:not(.is-set)'))})].map((node) => node.textContent)")
        check(all(any(word in one for one in text) for word in ("\\newcommand", "\\def\\q{x}\\q")), "a formula that defines a command is not shown as it is written")
    longest = page.js("return window.longest")
    check(longest < MAX_BLOCKED_MS, f"the page did not react for {longest:.0f} ms")
    check(page.js("return document.getElementById('input').tagName") == "TEXTAREA" and page.count("#messages [id]") == 0, "a formula has an id")
    inside = page.js("""const box = document.getElementById('thread').getBoundingClientRect();
        return document.elementFromPoint(box.left / 2, innerHeight / 2).closest('#sidebar') !== null && document.getElementById('thread').scrollWidth <= box.width + 1""")
    check(inside, "a formula covers the page")
    print(f"hostile formulas: the page did not react for {longest:.0f} ms at most")
    page.open()


def copied_formulas(page):
    if not HAS_KATEX:
        return
    page.new()
    page.find("#import-file").send_keys(write("copied.json", [{"role": "user", "content": "x"}, {"role": "assistant", "content": "With $a^2$ and\n\n$$\nb\n$$"}]))
    page.wait("formulas", lambda: page.count(page.last(".formula.is-set")) == 2)
    copied = page.js(f"""getSelection().selectAllChildren(document.querySelector({json.dumps(page.last('.markdown'))}));
        const event = new ClipboardEvent("copy", {{ clipboardData: new DataTransfer(), bubbles: true, cancelable: true }});
        document.activeElement.dispatchEvent(event);
        getSelection().removeAllRanges();
        return event.clipboardData.getData("text/plain")""")
    check(copied.split() == ["With", "$a^2$", "and", "$$", "b", "$$"], f"copied: {copied!r}")


def any_formulas(page):
    """Random texts, for QN_FUZZ_SECONDS."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "page_formula_fuzz.js")) as file:
        script = file.read()
    seconds, runs = float(os.environ.get("QN_FUZZ_SECONDS", "2")), 0
    seed = int(os.environ.get("QN_FUZZ_SEED", time.time_ns() % 2**32))
    for piece in range(max(1, round(seconds))):
        result = page.driver.execute_async_script(script, (seed + 7919 * piece) % 2**32, 1000)
        check(not result["problem"], f"seed {seed}, piece {piece}: {result['problem']}")
        runs += result["runs"]
    print(f"{runs} random texts, seed {seed}")


TESTS = [delimiters, formulas, growing_formulas, hostile_formulas, copied_formulas, any_formulas]
