// Markdown to elements: marked's lexer finds the tokens, and each becomes a node here. No HTML is ever parsed: tags in
// an answer are shown as text. Without marked there are only text, formulas in it, and fenced code.
import { CodeBlock } from "./code.js";
import { element } from "./dom.js";
import { formulas, restore } from "./formula.js";
import { lexer, MAX_INLINE } from "./lexer.js";
import { formulaNode } from "./typeset.js";

const MAX_DEPTH = 40;
const TAB = "\uE000"; // stands for a tab in fenced code, which marked would replace by spaces

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00A0", copy: "©", reg: "®", hellip: "…",
    mdash: "—", ndash: "–",
    times: "×", middot: "·", bull: "•", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠", deg: "°", euro: "€",
        trade: "™" };

const characters = (text) => restore(text).replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-zA-Z]{2,8}));/g,
    (whole, decimal, hex, name) => {
    if (name)
        return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hex, 16);
    return code > 0 && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF) ? String.fromCodePoint(code) : "\uFFFD";
});

// The text for the lexer. A prefix of a text gives a prefix of the result.
export function prepare(text) {
    if (!/[\t\r]/.test(text))
        return text;
    let fence = null;
    return text.replace(/\r\n?/g, "\n").split("\n").map((line) => {
        const mark = /^ {0,3}(`{3,}|~{3,})(.*)/.exec(line);
        if (fence && mark && mark[1][0] === fence[0] && mark[1].length >= fence.length && !mark[2].trim())
            fence = null;
        else if (fence)
            return line.replaceAll("\t", TAB);
        else if (mark)
            fence = mark[1];
        return line.replace(/^( *)(\t+)/, (_, spaces, tabs) => spaces + "    ".repeat(tabs.length));
    }).join("\n");
}

// Text and fenced code, as tokens in marked's form.
function plainTokens(text) {
    const tokens = [];
    let end = 0;
    const paragraphs = (part) => {
        for (const raw of part.split(/(?<=\n\n)(?!\n)/))
            if (raw)
                tokens.push({ type: raw.trim() ? "plain" : "space", raw });
    };
    const fences = /^(`{3,}(?!`)|~{3,}(?!~))([^\n`]*)(?:\n|$)([^]*?)(?:^\1[`~]*[ \t]*(?:\n|$)|$(?![^]))/gm;
    for (const match of text.matchAll(fences)) {
        paragraphs(text.slice(end, match.index));
        tokens.push({ type: "code", raw: match[0], lang: match[2], text: match[3].replace(/\n$/, "") });
        end = match.index + match[0].length;
    }
    paragraphs(text.slice(end));
    return tokens;
}

// The tokens of prepared text; their `raw` texts join to the text. is_growing: more text may follow.
export function tokenize(text, is_growing = false) {
    const { marked } = globalThis;
    if (!marked?.Lexer)
        return plainTokens(text);
    try {
        return lexer(marked, text, is_growing).lex(text);
    } catch {
        return plainTokens(text); // nesting exceeds the lexer's stack
    }
}

// Only absolute addresses of three schemes are safe.
export function safeAddress(href) {
    try {
        const url = new URL(characters(href));
        return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
    } catch {
        return null;
    }
}

function link(href, children) {
    const address = safeAddress(href);
    return address ? element("a", { href: address, title: address, target: "_blank",
        rel: "noopener noreferrer nofollow" }, ...children)
        : element("span", { class: "no-link" }, ...children);
}

function codeSpan(raw) {
    const inner = restore(raw).replace(/^(`+)([^]*)\1$/, "$2").replaceAll("\n", " ");
    return element("code", {}, inner.startsWith(" ") && inner.endsWith(" ") && /[^ ]/.test(inner) ? inner.slice(1, -1)
        : inner);
}

const inlines = (tokens, depth) => (tokens ?? []).map((token) => inline(token, depth + 1));

function inline(token, depth) {
    if (depth > MAX_DEPTH)
        return restore(token.raw);
    switch (token.type) {
    case "formula": return formulaNode(token, restore(token.raw));
    case "text": return token.tokens ? element("span", {}, ...inlines(token.tokens, depth)) : characters(token.raw);
    case "escape": return token.raw.slice(1);
    case "strong": return element("strong", {}, ...inlines(token.tokens, depth));
    case "em": return element("em", {}, ...inlines(token.tokens, depth));
    case "del": return element("del", {}, ...inlines(token.tokens, depth));
    case "codespan": return codeSpan(token.raw);
    case "br": return element("br");
    case "html": return /^<br *\/?>$/i.test(token.raw) ? element("br") : restore(token.raw);
    case "link": return link(token.href, /^<|^[^[]/.test(token.raw) ? [token.raw.replace(/^<|>$/g, "")]
        : inlines(token.tokens, depth));
    // An image would be a request to another server, which the page's policy forbids.
    case "image": return link(token.href, [`Image: ${characters(token.text || token.href)}`]);
    default: return restore(token.raw);
    }
}

const blocks = (tokens, depth) => (tokens ?? []).map((token) => block(token, depth + 1)).filter((node) =>
    node !== null);

function list(token, depth) {
    const items = token.items.map((item) => {
        const children = blocks(item.tokens, depth);
        if (item.task)
            children.unshift(element("input",
                { type: "checkbox", disabled: true, checked: Boolean(item.checked),
                "aria-label": item.checked ? "done" : "to do" }));
        return element("li", { class: item.task ? "task" : null }, ...children);
    });
    return element(token.ordered ? "ol" : "ul", { start: token.ordered && token.start !== 1 ? token.start : null },
        ...items);
}

function table(token, depth) {
    const cell = (tag) => (entry, i) => element(tag,
        { class: token.align[i] ? `to-${token.align[i]}` : null, scope: tag === "th" ? "col" : null },
        ...inlines(entry.tokens, depth));
    const row = (tag) => (cells) => element("tr", {}, ...cells.map(cell(tag)));
    return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
        element("table", {}, element("thead", {}, row("th")(token.header)),
            element("tbody", {}, ...token.rows.map(row("td")))));
}

// Text without Markdown, with its formulas.
function plain(raw) {
    const text = raw.slice(0, raw.search(/(?<!\n)\n*$/)), nodes = [];
    let shown = 0;
    for (const span of text.length <= MAX_INLINE ? formulas(text) : []) {
        nodes.push(text.slice(shown, span.from), formulaNode(span, text.slice(span.from, span.to)));
        shown = span.to;
    }
    return [...nodes, text.slice(shown)];
}

function finishedCode(token) {
    const code = new CodeBlock(codeText(token), token.lang);
    code.finish();
    return code.element;
}

export const codeText = (token) => restore(token.text).replaceAll(TAB, "\t");

// The node of a token; null: it shows nothing.
export function block(token, depth = 0) {
    if (depth > MAX_DEPTH)
        return element("p", { class: "plain" }, restore(token.raw));
    switch (token.type) {
    case "formula": return element("p", { class: "display" }, formulaNode(token, restore(token.raw).trim()));
    case "space": case "def": return null;
    case "code": return finishedCode(token);
    case "heading": return element(`h${Math.min(token.depth + 2, 6)}`, {}, ...inlines(token.tokens, depth));
    case "hr": return element("hr");
    case "blockquote": return element("blockquote", {}, ...blocks(token.tokens, depth));
    case "list": return list(token, depth);
    case "table": return table(token, depth);
    case "paragraph": return element("p", {}, ...inlines(token.tokens, depth));
    case "text": return element("span", {}, ...(token.tokens ? inlines(token.tokens, depth) : [characters(token.raw)]));
    default: return element("p", { class: "plain" }, ...plain(restore(token.raw)));
    }
}
