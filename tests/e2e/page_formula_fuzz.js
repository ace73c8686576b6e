// Random texts of marks of formulas and of Markdown, for page_test_formulas.py. Arguments: a seed, milliseconds, and what to call with
// { runs, problem }. Whatever a text is, its tokens join to it, no stand-in for a character is shown, nothing of others is made, and it
// takes no second.
const [seed, ms, done] = arguments;
const SLOW_MS = 1000;
const PIECES = ["$", "$$", "$$$", "\\(", "\\)", "\\[", "\\]", "\n", "\n\n", "a", "x_1", "*", "**", "_", "`", "```\n", "- ", "  - ", "1. ", "| a | b |\n| - | - |\n", " | ", "> ",
    "# ", "\\", "\\\\", "{", "}", "^", " ", "5", "$5", "$HOME", "word word ", "\\begin{align}", "\\end{align}", "\\frac{1}{2}", "\\text{a_b}", "\\href{javascript:window.HIT=70}{x}",
    "\\def\\a{b}", "&", "%", "    ", "\t", "~~", "[a](b)", "<b>", "<script>window.HIT=71</script>", "---\n", "===\n", "\uE000", "\uE001", "\uE002", "速度", "，", "&lt;", "\r\n"];

let state = seed >>> 0;
function draw(n) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
}

function require(condition, what, text) {
    if (!condition)
        throw new Error(`not so: ${what}: ${JSON.stringify(text).slice(0, 1500)}`);
}

// What is no white space: some of marked's own tokens have a line break too many, or in place of a space at the end.
const dense = (text) => text.replace(/\s+/g, "");

function check({ prepare, tokenize, block }, { formulas, protect, restore }, source, is_growing) {
    const text = prepare(source), tokens = tokenize(text, is_growing), nodes = document.createElement("div");
    require(dense(tokens.map(({ raw }) => raw).join("")) === dense(text), "tokens join to the text", source);
    nodes.append(...tokens.map((token) => block(token)).filter((node) => node));
    require(!/[\uE001\uE002]/.test(nodes.textContent), "no stand-in for a character is shown", source);
    require(!nodes.querySelector("script, img, b, [href^=javascript], [style]:not(.katex [style])"), "nothing of others is made", source);
    require(restore(protect(text, is_growing)) === restore(text) && protect(text, is_growing).length === text.length, "protected text is the text", source);
    let at = 0;
    for (const { from, to, tex, is_open } of formulas(text, is_growing)) {
        require(from >= at && to > from && to <= text.length && (is_open || restore(text.slice(from, to)).includes(tex)), "formulas are parts of the text, in order", source);
        at = to;
    }
}

Promise.all([import("/page/markdown.js"), import("/page/formula.js")]).then(async ([markdown, formula]) => {
    const result = { runs: 0, problem: null }, end = performance.now() + ms;
    try {
        while (performance.now() < end) {
            let text = "";
            for (let n = draw(20) ? draw(40) : draw(2000); n >= 0; n--)
                text += PIECES[draw(PIECES.length)];
            const began = performance.now();
            check(markdown, formula, text, draw(2) > 0);
            require(performance.now() - began < SLOW_MS, `it takes ${Math.round(performance.now() - began)} ms`, text);
            if (!(++result.runs % 50))
                await new Promise((resolve) => setTimeout(resolve)); // KaTeX is loaded, and sets some
        }
        require(window.HIT === undefined, "nothing ran", "");
    } catch (error) {
        result.problem = `${error.message} ${error.stack?.slice(0, 300)}`;
    }
    done(result);
});
