// Which messages a full context leaves out, as quern chat decides it: the oldest turns, as few as possible, so that a
// quarter of the context stays for the answer. They stay left out.
import { withFiles } from "./files.js";

const PER_MESSAGE = 64; // tokens of a template around a message, at most
const bytes = (text) => new TextEncoder().encode(text ?? "").length;

// At least the tokens of a message: a token has a byte or more.
const most = (message) => PER_MESSAGE + bytes(withFiles(message.content, message.files)) + bytes(message.reasoning)
    + (message.tool_calls ? bytes(JSON.stringify(message.tool_calls)) : 0);

// A limit for the tokens of the messages from index `first` on: what the server counted for the last answer, and the
// bytes of what came after it.
function limitOf(messages, first, system) {
    let tokens = bytes(system) + 4 * PER_MESSAGE;
    for (let i = messages.length - 1; i >= first; i--) {
        const { stats } = messages[i];
        if (stats?.prompt >= 0 && stats.from === messages[first].n)
            return tokens + stats.prompt + (stats.tokens ?? 0);
        tokens += most(messages[i]);
    }
    return tokens;
}

// The tokens that stay free for an answer.
export const reserveOf = (n_ctx, max_tokens) => Math.min(Math.floor(n_ctx / 4), max_tokens ?? Infinity);

// The index of the first message to send. count(i) promises the tokens of those from index i on, or undefined.
export async function firstToSend(messages, first, { n_ctx, max_tokens, system }, count) {
    const limit = n_ctx - reserveOf(n_ctx, max_tokens);
    if (!n_ctx || limitOf(messages, first, system) <= limit)
        return first;
    const starts = [first];
    messages.forEach(({ role }, i) => role === "user" && i > first && starts.push(i));
    const fits = async (turn) => {
        const n = await count(starts[turn]);
        return n === undefined ? undefined : n <= limit;
    };
    if (starts.length === 1 || await fits(0) !== false)
        return first;
    let low = 1, high = starts.length - 1;
    while (low < high) {
        const middle = Math.floor((low + high) / 2), is_short = await fits(middle);
        if (is_short === undefined)
            return first;
        if (is_short)
            high = middle;
        else
            low = middle + 1;
    }
    return starts[high];
}
