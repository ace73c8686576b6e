// Sets formulas with KaTeX, which is loaded when the first one appears. Until then, without KaTeX, and where a formula
// has an error or would take too long, its text is shown as it is written.
import { element } from "./dom.js";

const MAX_LENGTH = 3000;
const MAX_CELLS = 400; // of a table: KaTeX takes a millisecond for a few
const MAX_NODES = 20000, MAX_DEPTH = 200; // browsers end on elements that are nested some thousands deep
const MAX_KEPT = 300; // formulas whose nodes are copied when they appear again, as they do while a text grows
const SLICE_MS = 12;
// Definitions would let a short text become a long one.
const DEFINES = /\\(?:[egx]?def|(?:re|provide)?newcommand|let|futurelet|global|long)(?![a-zA-Z])/;
// Commands of LaTeX, its packages and MathJax that models write and KaTeX does not know.
const MACROS = { "\\mbox": "\\text{#1}", "\\ensuremath": "#1", "\\eqref": "(\\text{#1})", "\\ref": "\\text{#1}",
    "\\hfill": "\\quad", "\\SI": "#1\\,\\mathrm{#2}", "\\si": "\\mathrm{#1}", "\\euro": "\\text{€}" };
const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 };

const TEXT_MARKS = { _: "\\_", "^": "\\textasciicircum ", "&": "\\&" };

let loading = null, is_loaded = false;
const kept = new Map();
let waiting = []; // nodes
let timer = 0, not_before = 0, slice_began = 0;

function load() {
    const style = element("link", { rel: "stylesheet", href: "page/katex.css" });
    const script = element("script", { src: "page/katex.js" });
    const done = (node) => new Promise((resolve, reject) => {
        node.addEventListener("load", resolve);
        node.addEventListener("error", reject);
    });
    loading = Promise.all([done(style), done(script)]).then(() => {
        is_loaded = true;
        drain();
    }, () => {
        // The server may be gone: the next formula tries again.
        style.remove();
        script.remove();
        loading = null;
    });
    document.head.append(style, script);
}

// A few nodes have a style as an attribute, which the page's policy forbids. As a property it is allowed. Returns the
// number of nodes; throws an error if they are nested too deeply.
function takeStyles(node, styles, depth = 0) {
    if (depth > MAX_DEPTH)
        throw new Error("nested too deeply");
    if (node.attributes?.style) {
        node.attributes["data-style"] = styles.length;
        styles.push(node.attributes.style);
        delete node.attributes.style;
    }
    let n = 1;
    for (const child of node.children ?? [])
        n += takeStyles(child, styles, depth + 1);
    return n;
}

// What models write, and LaTeX or MathJax take, but KaTeX does not: a percent sign behind a number, which begins a
// comment, other marks without a backslash, underscores in text, and labels.
function forKatex(tex) {
    return tex.replace(/\\(?:label|require)\s*\{[^{}]*\}/g, "").replace(/\\[^]|[\d}]%|#/g,
        (mark) => (mark[0] === "\\" ? mark : `${mark.slice(0, -1)}\\${mark.at(-1)}`))
        .replace(/(\\(?:text(?:rm|bf|it|tt|sf|normal)?|mbox)\s*\{)([^{}$]*)\}/g, (_, begin, text) =>
            `${begin}${text.replace(/\\[^]|[_^&]/g, (mark) => TEXT_MARKS[mark] ?? mark)}}`);
}

function set(tex, is_display) {
    const { katex } = globalThis;
    if (!katex || DEFINES.test(tex) || tex.split("&").length > MAX_CELLS)
        return null;
    try {
        const options = { ...OPTIONS, macros: { ...MACROS }, displayMode: is_display };
        const tree = katex.__renderToDomTree(forKatex(tex), options), styles = [];
        if (takeStyles(tree, styles) > MAX_NODES)
            return null;
        const node = tree.toNode();
        for (const styled of node.querySelectorAll("[data-style]")) {
            styled.style.cssText = styles[styled.dataset.style];
            styled.removeAttribute("data-style");
        }
        return node;
    } catch {
        return null; // an error in the formula, or nesting
    }
}

// Nodes of a formula; null: it is shown as text.
function nodesOf(tex, is_display) {
    const key = `${is_display ? "d" : "i"}${tex}`;
    let node = kept.get(key);
    kept.delete(key);
    if (node === undefined)
        node = set(tex, is_display);
    kept.set(key, node);
    if (kept.size > MAX_KEPT)
        kept.delete(kept.keys().next().value);
    return node?.cloneNode(true) ?? null;
}

function show(formula) {
    const began = performance.now(), nodes = nodesOf(formula.tex, formula.is_display);
    if (nodes)
        formula.node.replaceChildren(nodes);
    formula.node.classList.toggle("is-set", nodes !== null);
    const now = performance.now();
    // Formulas that take long leave most of the time to the rest of the page.
    if (now - began > SLICE_MS)
        not_before = now + 4 * (now - began);
}

function drain() {
    timer = 0;
    const began = performance.now();
    while (waiting.length && performance.now() < began + SLICE_MS && performance.now() >= not_before) {
        const formula = waiting.shift();
        if (formula.node.isConnected)
            show(formula);
    }
    if (waiting.length)
        timer = setTimeout(drain, Math.max(0, not_before - performance.now()));
}

// Whether there is time for a formula at once, so that a growing text shows no other state before.
function hasTime() {
    const now = performance.now();
    if (!slice_began) {
        slice_began = now;
        setTimeout(() => slice_began = 0);
    }
    return now < slice_began + 3 * SLICE_MS && now >= not_before && !waiting.length;
}

// The node of a formula from formula.js; `raw` is its text with the delimiters.
export function formulaNode({ tex, is_display, is_open }, raw) {
    const kinds = `${is_display ? " display" : ""}${is_open ? " is-open" : ""}`;
    const node = element("span", { class: `formula${kinds}`, "data-tex": raw }, raw);
    if (is_open || tex.length > MAX_LENGTH)
        return node;
    const formula = { node, tex, is_display };
    if (is_loaded && hasTime()) {
        show(formula);
        return node;
    }
    waiting.push(formula);
    if (!loading)
        load();
    else if (is_loaded)
        timer ||= setTimeout(drain);
    return node;
}

// A selection with formulas is copied with their texts.
document.addEventListener("copy", (event) => {
    const selection = getSelection();
    if (selection.isCollapsed || !selection.rangeCount)
        return;
    const box = element("div", { class: "unseen copied" }, selection.getRangeAt(0).cloneContents());
    const formulas = [...box.querySelectorAll(".formula")];
    if (!formulas.length)
        return;
    for (const formula of formulas)
        formula.replaceChildren(formula.dataset.tex);
    document.body.append(box);
    event.clipboardData.setData("text/plain", box.innerText);
    event.preventDefault();
    box.remove();
});
