// Blocks of code: a head with the language and a button that copies, and colours for comments, strings, numbers and keywords. The colours
// are a guess from the shape of the words, the same for all languages but for how comments begin.
import { copyButton, element } from "./dom.js";

const HASH = /^(py|python|sh|bash|zsh|shell|console|ruby|rb|perl|pl|r|yaml|yml|toml|ini|make|makefile|cmake|dockerfile|nix|julia|elixir)$/;
const DASH = /^(sql|lua|haskell|hs|ada|vhdl|elm)$/;
const PLAIN = /^(|text|txt|plain|markdown|md|output|log|diff|csv)$/;
const MARKUP = /^(html|xml|svg|vue)$/;

const KEYWORDS = new Set(("abstract and as assert async await begin bool boolean break byte case catch char class const constexpr continue def default "
    + "defer delete do done double elif else elseif end enum except export extends extern false fi final finally float fn for foreach from func function "
    + "go goto if impl implements import in include inline int int32_t int64_t interface is lambda let local long loop match mod module mut namespace new "
    + "nil None not null nullptr of or override package pass private protected pub public raise range readonly ref repeat restrict return self select "
    + "short signed size_t sizeof static str string struct super switch template then this throw throws trait True False true try type typedef typename "
    + "uint8_t uint32_t uint64_t union unless unsigned until use using val var virtual void volatile when where while with yield SELECT FROM WHERE "
    + "INSERT INTO VALUES UPDATE DELETE CREATE TABLE JOIN LEFT INNER ON GROUP BY ORDER LIMIT AND OR NOT NULL AS SET").split(" "));

const MAX_COLOURED = 100000;
const STRINGS = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|${"`"}(?:[^${"`"}\\]|\\[^])*${"`"}`;
const REST = String.raw`(?<number>\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\w*)|(?<word>[A-Za-z_]\w*)`;

function pattern(language) {
    if (MARKUP.test(language))
        return new RegExp(String.raw`(?<comment><!--[^]*?-->)|(?<string>"[^"\n]*"|'[^'\n]*')|(?<keyword></?[\w:-]+|/?>)`, "g");
    const comment = HASH.test(language) ? "(?<![\\w$&])#[^\\n]*" : DASH.test(language) ? "--[^\\n]*" : String.raw`\/\/[^\n]*|\/\*[^]*?\*\/|^[ \t]*#[a-z]+`;
    const string = HASH.test(language) ? `"""[^]*?"""|'''[^]*?'''|${STRINGS}` : STRINGS;
    return new RegExp(`(?<comment>${comment})|(?<string>${string})|${REST}`, "gm");
}

// The text as text nodes and spans.
function coloured(text, language) {
    const nodes = [];
    let end = 0;
    for (const match of text.matchAll(pattern(language))) {
        const { comment, string, number, keyword, word } = match.groups;
        const kind = comment !== undefined ? (comment.trimStart().startsWith("#") && !HASH.test(language) ? "keyword" : "comment")
            : string !== undefined ? "string" : number !== undefined ? "number" : keyword !== undefined || KEYWORDS.has(word) ? "keyword"
            : text[match.index + match[0].length] === "(" ? "call" : null;
        if (!kind)
            continue;
        nodes.push(text.slice(end, match.index), element("span", { class: `c-${kind}` }, match[0]));
        end = match.index + match[0].length;
    }
    nodes.push(text.slice(end));
    return nodes;
}

// A block that may still grow: set(text) replaces its text, finish() colours it.
export class CodeBlock {
    constructor(text, info) {
        this.language = /^[\w+#.-]{0,30}/.exec((info ?? "").trim().toLowerCase())[0];
        this.text = "";
        this.node = document.createTextNode("");
        this.code = element("code", {}, this.node);
        this.element = element("figure", { class: "code" },
            element("figcaption", {}, element("span", {}, this.language || "text"), copyButton("Copy code", () => this.text)),
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
            this.code.replaceChildren(...coloured(this.text, this.language));
    }
}
