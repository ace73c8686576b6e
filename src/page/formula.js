// Finds formulas in text: \( \), \[ \], $$ $$, \begin{align} \end{align}, and $ $ where it cannot be money, a variable
// of a shell or the like. typeset.js shows them.

// Characters that stand for others while marked splits a text into lines and cells: a line break and a vertical bar
// within a formula.
const BREAK = "\uE001", BAR = "\uE002";

export const restore = (text) => (/[\uE001\uE002]/.test(text) ? text.replaceAll(BREAK, "\n").replaceAll(BAR, "|")
    : text);

const MAX_DOLLARS = 1000; // of a formula between single dollars
const MAX_OPEN = 4000, MAX_OPEN_DOLLAR = 200; // of one whose end may still come
export const MAX_BLOCK = 8000; // of one that has its lines for itself
const SIGNS = /[\\^_{}=]/, MORE_SIGNS = /[\\^_{}=+*/<>≤≥≈≠×÷±∑∫√]/;
const ENVIRONMENT = /\\begin\{((?:(?:align|alignat|equation|gather)\*?|aligned|gathered|cases|CD|[pbvBV]?matrix))\}/y;
export const BLOCK_FORMULA = /^( {0,3})(\$\$(?!\$)|\\\[|\\begin\{)/; // its beginning
const CLOSERS = { "\\(": "\\)", "\\[": "\\]" };
const FUNCTIONS = /\b(?:mod|sin|cos|tan|log|ln|exp|max|min)\b/g;
const NAMED = /\\(?:text\w*|mathrm|mbox|operatorname\*?|tag\*?|label|ce)\s*\{[^{}]*\}|\\[a-z]+/gi;

// Words between two delimiters, as in prose, and no sign of a formula: the delimiters mean something else.
const isProse = (text) => !MORE_SIGNS.test(text) && /\b[a-z]{2,}[ ,;]+[a-z]{2,}\b/i.test(text);

// The same for dollars, which mean more things: with signs of a formula more words are needed.
const isDollarProse = (text) => (SIGNS.test(text) ? /\b[a-z]{2,}(?:[ ,;]+[a-z]{2,}){3}/i.test(text.replace(NAMED, "."))
    : isProse(text));

// Whether every bracket that closes was opened before.
function isBalanced(text) {
    let depth = 0;
    for (const c of text) {
        depth += "([{".includes(c) ? 1 : ")]}".includes(c) ? -1 : 0;
        if (depth < 0)
            return false;
    }
    return depth === 0;
}

// The text between single dollars that a formula can be. `next` follows the second dollar.
function isDollarFormula(tex, next) {
    if (!tex || tex.length > MAX_DOLLARS || /^\s|\s$/.test(tex) || isDollarProse(tex))
        return false;
    // "$n$th" and "$2$D", but no "$HOME/$USER" and no "$5-$10"
    if (/^\w/.test(next) && !(tex.length < 40 && /^(?:th|st|nd|rd|s|d|D)\b/.test(next)))
        return false;
    // "$(SRC)/$(OBJ)", "${A}${B}"
    if ((tex.length > 1 && /[^\\][/:;=([,&]$/.test(tex)) || ("({".includes(tex[0]) && tex[0] === next[0]))
        return false;
    if (!SIGNS.test(tex) && /[\n"“”;`]/.test(tex))
        return false;
    const is_amount = /^[-+]?[\d.,]/.test(tex);
    return !is_amount || /[\\^_{}]/.test(tex)
        || (isBalanced(tex) && !/[a-z\u0080-\uffff]{2,}/i.test(tex.replace(FUNCTIONS, "")));
}

// The search of one text. `missing` has the ends that do not come any more.
class Search {
    constructor(text, is_growing) {
        Object.assign(this, { text, is_growing, missing: new Set() });
    }

    // The span of a formula whose end may still come: shown as it is written.
    #open(from, begin) {
        if (!this.is_growing || this.text.length - begin > MAX_OPEN)
            return null;
        const tex = this.text.slice(begin).trim();
        return /\n\s*\n/.test(tex) || isProse(tex) ? null : { from, to: this.text.length, is_open: true };
    }

    // After `from`: the position of an end that is not escaped, -1 if there is none, -2 if there is another beginning
    // before.
    #end(from, opener, closer) {
        const marks = /\\[^]/g;
        marks.lastIndex = from;
        for (let match; (match = marks.exec(this.text));) {
            if (match[0] === closer)
                return match.index;
            if (match[0] === opener)
                return -2;
        }
        return -1;
    }

    code(from, run) {
        if (this.missing.has(run))
            return null;
        for (let at = from + run.length; (at = this.text.indexOf(run, at)) >= 0;) {
            const begin = at;
            while (this.text[at] === "`")
                at++;
            if (at - begin === run.length)
                return at;
        }
        this.missing.add(run);
        return null;
    }

    bracket(from, opener) {
        const closer = CLOSERS[opener], begin = from + 2;
        const end = this.missing.has(closer) ? -1 : this.#end(begin, opener, closer);
        if (end === -1) {
            this.missing.add(closer);
            // Its backslash stays, whatever follows. Within a line it ends there.
            const is_line = opener === "\\(" && this.text.indexOf("\n", begin) >= 0;
            return (is_line ? null : this.#open(from, begin)) ?? { from, to: begin, is_open: true };
        }
        const tex = end < 0 ? "" : this.text.slice(begin, end), is_display = opener === "\\[";
        // "\[1\]" within a line is a bracket, whose backslashes only keep it from being a link.
        if (!tex.trim() || isProse(tex) || (is_display ? !MORE_SIGNS.test(tex) && !this.#isAlone(from, end + 2)
            : /\n\s*\n/.test(tex)))
            return null;
        return { from, to: end + 2, tex, is_display };
    }

    // Two dollars.
    double(from) {
        const begin = from + 2;
        let end = -1;
        if (!this.missing.has("$$")) {
            const marks = /\\[^]|\$+/g;
            marks.lastIndex = begin;
            for (let match; end < 0 && (match = marks.exec(this.text));)
                end = match[0] === "$$" ? match.index : -1;
        }
        if (end < 0) {
            this.missing.add("$$");
            return this.#open(from, begin);
        }
        const tex = this.text.slice(begin, end), is_line = this.#isAlone(from, end + 2);
        if (!tex.trim() || isProse(tex) || (!is_line && !SIGNS.test(tex) && /^\s|\s$/.test(tex)))
            return null;
        return { from, to: end + 2, tex, is_display: true };
    }

    // Whether only spaces, and a mark at its end, stand on the lines of a formula beside it.
    #isAlone(from, to) {
        const before = this.text.slice(Math.max(0, from - 200), from), after = this.text.slice(to, to + 200);
        return /(?:^|\n)[ \t>]*$/.test(before) && /^[ \t]*[.,;:。，；]?[ \t]*(?:\n|$)/.test(after);
    }

    single(from) {
        const { text } = this, begin = from + 1;
        if (/[\w$]/.test(text[from - 1] ?? " ") || /\s/.test(text[begin] ?? " "))
            return null;
        const marks = /\\[^]|\$+|`|\n\s*\n/g;
        marks.lastIndex = begin;
        let match;
        do
            match = marks.exec(text);
        while (match?.[0][0] === "\\");
        const end = match?.index ?? text.length, is_at_end = end + 1 >= text.length;
        const tex = text.slice(begin, end);
        if (this.is_growing && is_at_end && (!match || match[0] === "$"))
            return tex.length <= MAX_OPEN_DOLLAR && !tex.includes("\n") && (!/^[\d.,]/.test(tex) || /[\\^_{]/.test(tex))
                && !isDollarProse(tex) ? this.#open(from, begin) : null;
        return match?.[0] === "$" && isDollarFormula(tex, text.slice(end + 1, end + 4))
            ? { from, to: end + 1, tex, is_display: false } : null;
    }

    environment(from) {
        ENVIRONMENT.lastIndex = from;
        const match = ENVIRONMENT.exec(this.text);
        if (!match || !/(?:^|\n)[ \t]*$/.test(this.text.slice(Math.max(0, from - 200), from)))
            return null;
        const closer = `\\end{${match[1]}}`;
        const end = this.missing.has(closer) ? -1 : this.text.indexOf(closer, from);
        if (end < 0) {
            this.missing.add(closer);
            return this.#open(from, from);
        }
        const to = end + closer.length;
        return { from, to, tex: this.text.slice(from, to), is_display: true };
    }

    // The formula that begins with a mark.
    at(mark, from) {
        return CLOSERS[mark] ? this.bracket(from, mark) : mark === "$$" ? this.double(from)
            : mark === "$" ? this.single(from) : mark === "\\begin{" ? this.environment(from) : null;
    }
}

// The formulas of a text in their order: { from, to, tex, is_display }, or { from, to, is_open: true } for a part that
// is shown as it is written. Code between backticks has none. is_growing: more text may follow its end. The time grows
// with the text.
export function formulas(protected_text, is_growing = false) {
    const text = restore(protected_text), search = new Search(text, is_growing), found = [];
    const marks = /\\begin\{|\\[^]|`+|\$+/g;
    for (let match; (match = marks.exec(text));) {
        const [mark] = match, from = match.index;
        if (mark[0] === "`") {
            marks.lastIndex = search.code(from, mark) ?? marks.lastIndex;
            continue;
        }
        const span = search.at(mark, from);
        if (span) {
            found.push(span);
            marks.lastIndex = span.to;
        }
    }
    return found;
}

// A formula that begins a text and has its lines for itself: { to, tex, is_display }, or { to, is_open }; null: there
// is none.
export function blockFormula(protected_text, is_growing) {
    const match = BLOCK_FORMULA.exec(protected_text);
    if (!match)
        return null;
    const text = restore(protected_text.slice(0, MAX_BLOCK)), is_whole = text.length === protected_text.length;
    const span = new Search(text, is_growing && is_whole).at(match[2], match[1].length);
    if (!span || (span.is_open && span.to < text.length))
        return null;
    const rest = /^[ \t]*([.,;:。，；]?)[ \t]*(?:\n|$)/.exec(text.slice(span.to, span.to + 100));
    return rest && { ...span, to: span.to + rest[0].length, tex: span.is_open ? undefined : span.tex + rest[1] };
}

// The text with the line breaks and bars of its formulas replaced, so that it splits into lines and cells between
// formulas only. It has the same length. A bar between spaces ends a cell, if the end of the formula did not come yet.
export function protect(text, is_growing) {
    let result = "", shown = 0;
    for (const { from, to, is_open } of formulas(text, is_growing)) {
        const formula = text.slice(from, to), is_other = /\n[ \t]*>/.test(formula) || (is_open && / \| /.test(formula));
        result += text.slice(shown, from) + (is_other ? formula
            : formula.replaceAll("\n", BREAK).replaceAll("|", BAR));
        shown = to;
    }
    return result + text.slice(shown);
}
