// Markdown that grows. Only the end of the text is parsed again: blocks before the last two cannot change, and blocks
// with the same text keep their nodes. The complete text is parsed once as a whole, for links whose addresses are
// defined below them.
import { CodeBlock } from "./code.js";
import { block, codeText, prepare, tokenize } from "./markdown.js";

const KEPT_OPEN = 2;

export class LiveMarkdown {
    constructor(container) {
        this.container = container;
        this.blocks = []; // { type, raw, node, code }: all blocks shown
        this.n_closed = 0; // blocks that are not parsed again
        this.closed = ""; // their text
    }

    // Shows a text that begins with the text of the last call.
    set(source) {
        const text = prepare(source);
        if (!text.startsWith(this.closed))
            this.#restart();
        const tokens = tokenize(text.slice(this.closed.length), true);
        this.#show(this.n_closed, tokens, false);
        this.#close(tokens);
    }

    finish(source) {
        this.#restart();
        this.#show(0, tokenize(prepare(source)), true);
    }

    #restart() {
        this.n_closed = 0;
        this.closed = "";
    }

    // Shows the tokens as the blocks from index `first` on.
    #show(first, tokens, is_complete) {
        // A link's address may be defined later in the text, so its node is made again.
        const has_definitions = is_complete && Object.keys(tokens.links ?? {}).length > 0;
        // A formula at the end of a text that grows is shown as it is written.
        const is_same = (shown, token, is_end) => shown?.type === token.type && shown.raw === token.raw
            && !(has_definitions && token.raw.includes("]")) && (shown.is_end === is_end || !/[$\\]/.test(token.raw));
        tokens.forEach((token, i) => {
            const shown = this.blocks[first + i], is_end = !is_complete && i + 1 === tokens.length;
            if (!is_same(shown, token, is_end))
                this.#put(first + i, shown, token, is_end);
            if (token.type === "code" && (is_complete || i + 1 < tokens.length))
                this.#colour(this.blocks[first + i]);
        });
        for (const shown of this.blocks.splice(first + tokens.length))
            shown.node?.remove();
    }

    #colour(shown) {
        if (!shown.is_coloured)
            shown.code.finish();
        shown.is_coloured = true;
    }

    #put(index, shown, token, is_end) {
        if (token.type === "code" && shown?.type === "code" && shown.lang === token.lang) {
            shown.code.set(codeText(token));
            Object.assign(shown, { raw: token.raw, is_coloured: false, is_end });
            return;
        }
        const code = token.type === "code" ? new CodeBlock(codeText(token), token.lang) : null;
        const node = code ? code.element : block(token);
        if (shown?.node && node)
            shown.node.replaceWith(node);
        else if (shown?.node)
            shown.node.remove();
        else if (node)
            this.container.insertBefore(node, this.blocks.slice(index + 1).find((later) => later.node)?.node ?? null);
        this.blocks[index] = { type: token.type, raw: token.raw, lang: token.lang, node, code, is_coloured: false,
            is_end };
    }

    #close(tokens) {
        let last = tokens.length;
        for (let n_open = 0; last > 0 && n_open < KEPT_OPEN;)
            n_open += tokens[--last].type !== "space";
        for (const token of tokens.slice(0, last))
            this.closed += token.raw;
        this.n_closed += last;
    }
}
