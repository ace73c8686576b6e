// marked's lexer with two changes: its searches take a time that grows with the text, and formulas are tokens of their
// own, found before Markdown could read their backslashes, stars, bars and lines.
import { BLOCK_FORMULA, blockFormula, formulas, MAX_BLOCK, protect, restore } from "./formula.js";

// Searches for an end that may be missing: the beginning, and the cost per character searched.
const SEARCHES = { emStrong: [/^[*_]/, 20], link: [/^!?\[/, 1], reflink: [/^!?\[/, 1], tag: [/^</, 1],
    autolink: [/^</, 1], codespan: [/^`/, 1], del: [/^~/, 1] };
const MAX_SEARCHED = 20e6, SEARCHED_PER_CHARACTER = 200;
export const MAX_INLINE = 20000; // characters of a paragraph; a longer one is text

// Characters of a paragraph in which the line that makes it a heading, or a formula with its own lines, is looked for.
const MAX_BEFORE = 1000;

// marked's lexer searches for such an end from each beginning. This limits the searches to a number that grows with the
// text; beyond it, and in very long paragraphs, such beginnings are text.
class Searches {
    constructor(text) {
        this.left = MAX_SEARCHED + SEARCHED_PER_CHARACTER * text.length;
    }

    // Whether a search may begin that looks at n characters.
    take(n) {
        this.left -= n;
        return this.left >= 0;
    }

    limit(tokenizer) {
        // The line below a heading is near: from each line marked would look for it up to the next empty one.
        const { lheading } = tokenizer;
        tokenizer.lheading = function (source) {
            const part = source.slice(0, MAX_BEFORE), token = lheading.call(this, part);
            return token?.raw.length === part.length && part.length < source.length ? undefined : token;
        };
        for (const [name, [begin, cost]] of Object.entries(SEARCHES)) {
            const search = tokenizer[name], searches = this;
            tokenizer[name] = function (source, ...more) {
                if (!begin.test(source) || searches.left < 0)
                    return undefined;
                const token = search.call(this, source, ...more);
                searches.take(cost * (token ? token.raw : source).length);
                return token;
            };
        }
    }
}

const lastLine = (text) => text.slice(text.lastIndexOf("\n") + 1);

// Formulas as tokens of marked's lexer. Within inline text they are looked for once, when its tokens are: `current` has
// that text and its formulas.
class FormulaTokens {
    constructor(text, is_growing, searches) {
        Object.assign(this, { text, is_growing, searches, current: null });
        this.extensions = { block: [(source) => this.#block(source)], inline: [(source) => this.#inline(source)],
            startInline: [(source) => this.#next(source)] };
    }

    join(lexer, tokenizer) {
        const tokens = this, { emStrong, list, paragraph, table } = tokenizer;
        // A paragraph ends where a formula with its own lines begins.
        tokenizer.paragraph = function (source) {
            return paragraph.call(this, source.slice(0, tokens.#nextBlock(source)));
        };
        // Stars and underscores of formulas end no emphasis.
        tokenizer.emStrong = function (source, masked, before) {
            return emStrong.call(this, source, tokens.#mask(masked), before);
        };
        // Lines of formulas are neither items nor rows, their bars end no cell.
        tokenizer.list = function (source) {
            if (!/^ {0,3}(?:[*+-]|\d{1,9}[.)])(?!\S)/.test(source))
                return undefined;
            return tokens.#protected(source, MAX_INLINE, protect, (text) => list.call(this, text));
        };
        tokenizer.table = function (source) {
            if (!/^[^\n]*\n[ |:-]*-[ |:-]*(?:\n|$)/.test(source.slice(0, MAX_INLINE)))
                return undefined;
            const [part] = source.slice(0, MAX_INLINE).split("\n\n", 1);
            const rows = (text, is_end) => text.split("\n")
                .map((row, i, all) => protect(row, is_end && i + 1 === all.length)).join("\n");
            return tokens.#protected(source, part.length, rows, (text) => table.call(this, text));
        };
        const inline = lexer.inlineTokens;
        lexer.inlineTokens = function (source, found = []) {
            if (source.length > MAX_INLINE) {
                found.push({ type: "text", raw: source, text: source });
                return found;
            }
            const outer = tokens.current;
            tokens.current = tokens.#find(source);
            try {
                return inline.call(this, source, found);
            } finally {
                tokens.current = outer;
            }
        };
    }

    #protected(source, length, change, read) {
        const part = source.slice(0, length), is_end = part.length === source.length && this.#is_end(source);
        const is_changed = /[$\\]/.test(part) && this.searches.take(length);
        const token = read(is_changed ? change(part, is_end) + source.slice(length) : source);
        if (token)
            token.raw = source.slice(0, token.raw.length); // marked's own has other spaces at its end, too
        return token;
    }

    // Whether a part of the text is at its end, and may grow.
    #is_end(source) {
        return this.is_growing && this.text.endsWith(lastLine(restore(source.slice(-MAX_BEFORE))));
    }

    #find(source) {
        const is_searched = /[$\\]/.test(source) && this.searches.take(source.length);
        const found = is_searched ? formulas(source, this.#is_end(source)) : [];
        return { source, found, at: new Map(found.map((span) => [span.from, span])), masked: null };
    }

    #token(span, source, length) {
        return { type: "formula", ...span, raw: source.slice(0, length) };
    }

    #block(source) {
        if (!BLOCK_FORMULA.test(source) || !this.searches.take(Math.min(source.length, MAX_BLOCK)))
            return undefined;
        const span = blockFormula(source, this.#is_end(source));
        return span ? this.#token(span, source, span.to) : undefined;
    }

    #inline(source) {
        const span = this.current?.at.get(this.current.source.length - source.length);
        return span && this.#token(span, source, span.to - span.from);
    }

    // Where text ends because a formula begins.
    #next(source) {
        const from = this.current ? this.current.source.length - source.length : 0;
        const span = this.current?.found.find((one) => one.from >= from);
        return span && span.from - from;
    }

    // Undefined: no formula begins in this paragraph.
    #nextBlock(source) {
        const [part] = source.slice(0, MAX_BEFORE).split("\n\n", 1);
        if (!this.searches.take(part.length))
            return undefined;
        const at = part.search(/\n {0,3}(?:\$\$|\\\[|\\begin\{)/) + 1;
        return at && this.#block(source.slice(at)) ? at : undefined;
    }

    #mask(masked) {
        const { current } = this;
        if (!current || masked.length !== current.source.length || !current.found.length)
            return masked;
        if (current.before !== masked) {
            current.before = current.masked = masked;
            for (const { from, to } of current.found)
                current.masked = current.masked.slice(0, from) + "a".repeat(to - from) + current.masked.slice(to);
        }
        return current.masked;
    }
}

// A lexer of marked for a text; is_growing: more may follow.
export function lexer(marked, text, is_growing) {
    const searches = new Searches(text), tokenizer = new marked.Tokenizer();
    const found = new FormulaTokens(text, is_growing, searches);
    const lexer = new marked.Lexer({ ...marked.defaults, gfm: true, breaks: false, tokenizer,
        extensions: found.extensions });
    found.join(lexer, tokenizer);
    searches.limit(tokenizer);
    return lexer;
}
