// Code blocks: a head with the language and a copy button, and colours for comments, strings, numbers and keywords. The
// colours are guessed from the shape of words, for all languages alike except for how comments begin.
import { copyButton, element } from "./dom.js";

const HASH = new RegExp("^(py|python|sh|bash|zsh|shell|console|ruby|rb|perl|pl|r|yaml|yml|toml|ini|"
    + "make|makefile|cmake|dockerfile|nix|julia|elixir)$");
const DASH = /^(sql|lua|haskell|hs|ada|vhdl|elm)$/;
const PLAIN = /^(|text|txt|plain|markdown|md|output|log|diff|csv)$/;
const MARKUP = /^(html|xml|svg|vue)$/;

const KEYWORDS = new Set((
    "abstract and as assert async await begin bool boolean break byte case catch char class const constexpr "
    + "continue def default defer delete do done double elif else elseif end enum except export extends extern "
    + "false fi final finally float fn for foreach from func function go goto if impl implements import in include "
    + "inline int int32_t int64_t interface is lambda let local long loop match mod module mut namespace new nil "
    + "None not null nullptr of or override package pass private protected pub public raise range readonly ref "
    + "repeat restrict return self select short signed size_t sizeof static str string struct super switch template "
    + "then this throw throws trait True False true try type typedef typename uint8_t uint32_t uint64_t union "
    + "unless unsigned until use using val var virtual void volatile when where while with yield SELECT FROM WHERE "
    + "INSERT INTO VALUES UPDATE DELETE CREATE TABLE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS SET"
).split(" "));

const MAX_COLOURED = 100000;

// A token that begins with a mark and has an end, which may be missing. find() looks for the end from a position on. It
// returns the position, or, as a negative number, the position up to which there is no end, for any beginning of the
// same kind.
function until(kind, end) {
    return { kind, find: (text, from) => {
        const at = text.indexOf(end, from);
        return at < 0 ? -text.length : at + end.length;
    } };
}

function quoted(quote, { escapes = false, lines = false } = {}) {
    return { kind: "string", find: (text, from) => {
        for (let i = from; i < text.length; i++) {
            if (text[i] === quote)
                return i + 1;
            if (escapes && text[i] === "\\")
                i++;
            if (text[i] === "\n" && !lines)
                return -i;
        }
        return -text.length;
    } };
}

const STRINGS = { "\"": quoted("\"", { escapes: true }), "'": quoted("'", { escapes: true }),
    "`": quoted("`", { escapes: true, lines: true }) };
const MARKUP_ENDS = { "<!--": until("comment", "-->"), "\"": quoted("\""), "'": quoted("'") };
const HASH_ENDS = { "\"\"\"": until("string", "\"\"\""), "'''": until("string", "'''"), ...STRINGS };
const SLASH_ENDS = { "/*": until("comment", "*/"), ...STRINGS };

const QUOTES = "[\"'`]";
const REST =
    String.raw`(?<number>\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*)|(?<word>[A-Za-z_]\w*)`;

// The tokens with ends in a language, and a pattern of their marks and of all other words. The pattern itself looks for
// no end.
function grammar(language) {
    if (MARKUP.test(language))
        return [MARKUP_ENDS, /(?<mark><!--|["'])|(?<keyword><\/?[\w:-]+|\/?>)/g];
    if (HASH.test(language))
        return [HASH_ENDS, new RegExp(`(?<comment>(?<![\\w$&])#[^\\n]*)|(?<mark>"""|'''|${QUOTES})|${REST}`, "gm")];
    if (DASH.test(language))
        return [STRINGS, new RegExp(`(?<comment>--[^\\n]*)|(?<mark>${QUOTES})|${REST}`, "gm")];
    return [SLASH_ENDS,
        new RegExp(String.raw`(?<comment>\/\/[^\n]*)|(?<keyword>^[ \t]*#[a-z]+)|(?<mark>\/\*|${QUOTES})|${REST}`,
        "gm")];
}

function wordKind({ comment, number, keyword, word }, next) {
    return comment !== undefined ? "comment" : number !== undefined ? "number" : keyword !== undefined
        || KEYWORDS.has(word) ? "keyword"
        : word !== undefined && next === "(" ? "call" : null;
}

// The text as text nodes and spans, in one pass: a missing end is looked for only once.
function coloured(text, language) {
    const [ends, pattern] = grammar(language), missing = {}, nodes = document.createDocumentFragment();
    let shown = 0;
    for (let match; (match = pattern.exec(text));) {
        const { mark } = match.groups, from = match.index;
        let kind = mark === undefined ? wordKind(match.groups, text[pattern.lastIndex]) : null;
        // three quotes without an end are an empty string and a quote
        for (const begin of mark === undefined ? [] : [mark, mark[0]]) {
            if (kind || !ends[begin] || from < missing[begin])
                continue;
            const end = ends[begin].find(text, from + begin.length);
            if (end > 0)
                [kind, pattern.lastIndex] = [ends[begin].kind, end];
            else
                missing[begin] = -end;
        }
        if (!kind)
            continue;
        nodes.append(text.slice(shown, from),
            element("span", { class: `c-${kind}` }, text.slice(from, pattern.lastIndex)));
        shown = pattern.lastIndex;
    }
    nodes.append(text.slice(shown));
    return nodes;
}

// A code block that may still grow: set(text) replaces its text, finish() colours it.
export class CodeBlock {
    constructor(text, info) {
        this.language = /^[\w+#.-]{0,30}/.exec((info ?? "").trim().toLowerCase())[0];
        this.text = "";
        this.node = document.createTextNode("");
        this.code = element("code", {}, this.node);
        this.element = element("figure", { class: "code" },
            element("figcaption", {}, element("span", {}, this.language || "text"),
                copyButton("Copy code", () => this.text)),
            element("pre", { tabindex: "0", "aria-label": `Code, ${this.language || "text"}` }, this.code));
        this.set(text);
    }

    set(text) {
        if (text.startsWith(this.text) && this.node.isConnected)
            this.node.appendData(text.slice(this.text.length));
        else
            this.code.replaceChildren(this.node = document.createTextNode(text));
        this.text = text;
    }

    finish() {
        if (!PLAIN.test(this.language) && this.text.length <= MAX_COLOURED)
            this.code.replaceChildren(coloured(this.text, this.language));
    }
}
