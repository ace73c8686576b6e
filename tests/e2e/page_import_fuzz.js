// Mutated conversations through the page's importer, for page_test.py. Arguments: a seed, milliseconds, texts to mutate, and what to call
// with { runs, accepted, problem, kept }: kept are some texts that were accepted. Whatever a text is, it is refused with an Error, or what
// comes of it has the known fields with the known types alone, and comes of itself again; and it takes no second.
const [seed, ms, texts, done] = arguments;
const LONGEST = 200000, MOST_KEPT = 8, SLOW_MS = 1000;
const HTML = "<img src=x onerror=window.HIT=50><script>window.HIT=51</script>";
const WORDS = ["format", "quern-conversations", "version", "conversations", "messages", "title", "created", "updated", "id", "role", "user",
    "assistant", "tool", "system", "content", "reasoning", "reasoning_content", "model", "error", "state", "streaming", "done", "files", "name", "text",
    "tool_calls", "parent", "leaf", "first", "function", "arguments", "tool_call_id", "stats", "speed", "tokens", "reasoning_ms", "__proto__", "constructor", "prototype",
    "toString", "hasOwnProperty", "then", "length", "0", HTML, "javascript:window.HIT=52", "", " ", "\n", "\0", "\ud800", "\u202e", "é🤗", "```html\n"];
const FIELDS = { role: "string", content: "string", created: "number", parent: "number", conversation: "string", n: "number", reasoning: "string", model: "string",
    error: "string", tool_call_id: "string", state: "string", reasoning_ms: "number", stats: "object", files: "object", tool_calls: "object" };

let state = seed >>> 0;
function draw(n) {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) % n;
}
const pick = (list) => list[draw(list.length)];

// ---- Mutations ----

function scalar() {
    switch (draw(9)) {
    case 0: return null;
    case 1: return draw(2) === 0;
    case 2: return pick([0, -1, 1, 2, 0.5, 1e13, 1e14, 1e15, 1e308, -1e308, 2 ** 53, 5e-324]);
    case 3: return [];
    case 4: return {};
    case 5: return pick(WORDS).repeat(draw(50) ? 1 + draw(3) : draw(20000));
    default: return pick(WORDS);
    }
}

// Own properties, `__proto__` among them.
function put(object, key, value) {
    if (Array.isArray(object))
        object.splice(draw(object.length + 1), 0, value);
    else
        Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
}

function nodes(root) {
    const all = [{ parent: null, value: root }];
    for (let i = 0; i < all.length && all.length < 3000; i++)
        if (typeof all[i].value === "object" && all[i].value)
            for (const key of Object.keys(all[i].value))
                all.push({ parent: all[i].value, key, value: all[i].value[key] });
    return all;
}

const copy = (value) => JSON.parse(JSON.stringify(value) ?? "null");

function nested(value) {
    for (let n = draw(20) ? 1 : draw(5000); n; n--)
        value = draw(2) ? [value] : { [pick(["messages", "content", "conversations"])]: value };
    return value;
}

function mutate(root) {
    const all = nodes(root), { parent, key, value } = pick(all);
    const replace = (by) => {
        if (parent === null)
            return by;
        Object.defineProperty(parent, key, { value: by, enumerable: true, configurable: true, writable: true });
        return root;
    };
    switch (draw(7)) {
    case 0: return replace(scalar());
    case 1: return replace(copy(pick(all).value));
    case 2:
        if (parent !== null)
            Array.isArray(parent) ? parent.splice(Number(key), 1) : delete parent[key];
        return root;
    case 3: return replace(nested(copy(value)));
    case 4:
        for (let n = draw(30) ? 1 + draw(3) : draw(300); n && parent !== null; n--)
            put(parent, `${key}${n}`, copy(value));
        return root;
    default:
        if (typeof value === "object" && value)
            put(value, pick(WORDS), draw(2) ? scalar() : copy(pick(all).value));
        else
            return replace(typeof value === "string" && draw(2) ? value + pick(WORDS) : scalar());
        return root;
    }
}

// Its characters, where a tree could not be.
function mutateText(text) {
    const at = draw(text.length + 1), end = Math.min(text.length, at + draw(20));
    return text.slice(0, at) + pick(["", "[", "]", "{", "}", ",", "\"", "1e400", "-", "\\ud800", "null", "\u0000", "[".repeat(draw(100000)), text.slice(at, end).repeat(2)]) +
        text.slice(draw(2) ? at : end);
}

// ---- Checks ----

function require(condition, what) {
    if (!condition)
        throw new Error(`not so: ${what}`);
}

const isOwn = (value, keys) => Object.getPrototypeOf(value) === Object.prototype && Object.keys(value).every((key) => keys.includes(key));

function check({ conversation, messages }) {
    require(isOwn(conversation, ["id", "title", "created", "updated", "leaf", "first"]), "a conversation has known fields");
    for (const index of [conversation.leaf, conversation.first])
        require(index === undefined || Number.isInteger(index) && index >= 0 && index < messages.length, "it names messages");
    require(/^[0-9a-f]{24}$/.test(conversation.id) && typeof conversation.title === "string" && conversation.title && conversation.title.length <= 200, "it has an id and a title");
    require(Number.isFinite(conversation.created) && Number.isFinite(conversation.updated), "it has times");
    messages.forEach((message, n) => {
        require(Number.isInteger(message.parent) && message.parent >= -1 && message.parent < n, "a message follows an earlier one");
        require(isOwn(message, Object.keys(FIELDS)) && message.n === n && message.conversation === conversation.id, "a message has known fields");
        for (const [key, value] of Object.entries(message))
            require(typeof value === FIELDS[key] && (FIELDS[key] !== "number" || Number.isFinite(value)), `${key} has its type`);
        for (const file of message.files ?? [])
            require(isOwn(file, ["name", "text"]) && typeof file.name === "string" && typeof file.text === "string", "a file is a name and a text");
        for (const call of message.tool_calls ?? [])
            require(isOwn(call, ["id", "name", "arguments"]) && Object.values(call).every((value) => typeof value === "string"), "a call is three texts");
        for (const value of Object.values(message.stats ?? {}))
            require(Number.isFinite(value), "stats are numbers");
    });
}

const bare = (entries) => JSON.stringify(entries.map(({ conversation, messages }) => [conversation.title, messages.map(({ conversation: _, ...message }) => message)]));

function checkAll(parse, entries) {
    entries.forEach(check);
    const again = parse(JSON.stringify({ format: "quern-conversations", version: 1,
        conversations: entries.map(({ conversation, messages }) => ({ ...conversation, messages })) }));
    require(bare(again) === bare(entries), "what was read is read again");
}

// Null, or what is wrong.
function run(parse, text, result) {
    const began = performance.now();
    let entries;
    try {
        entries = parse(text);
    } catch (error) {
        if (!(error instanceof Error) || error.constructor !== Error || !error.message)
            return `it throws ${error?.stack ?? error}`;
    }
    if (performance.now() - began > SLOW_MS)
        return `it takes ${Math.round(performance.now() - began)} ms`;
    try {
        if (entries) {
            result.accepted++;
            checkAll(parse, entries);
            if (result.kept.length < MOST_KEPT && text.length < 20000 && draw(20) === 0)
                result.kept.push(text);
        }
        require(Object.keys(Object.prototype).length === 0 && Object.keys(Array.prototype).length === 0 && window.HIT === undefined, "nothing else has changed");
    } catch (error) {
        return error.message;
    }
    return null;
}

import("/page/transfer.js").then(({ parse }) => {
    const result = { runs: 0, accepted: 0, problem: null, kept: [] }, corpus = [...texts];
    for (const end = performance.now() + ms; performance.now() < end && !result.problem; result.runs++) {
        const from = pick(corpus), before = result.accepted;
        let text;
        if (draw(8)) {
            let tree = null;
            try {
                tree = JSON.parse(from);
            } catch { /* a text whose characters were mutated */ }
            try {
                for (let n = 1 + draw(4); n; n--)
                    tree = mutate(tree);
                text = JSON.stringify(tree);
            } catch { /* too deep for JSON.stringify, not for JSON.parse */ }
        } else {
            text = mutateText(from);
        }
        if (text === undefined || text.length > LONGEST && draw(50))
            continue;
        result.problem = run(parse, text, result);
        if (result.problem)
            result.problem += `: ${text.slice(0, 2000)}`;
        if (text.length < 4000 && (result.accepted > before || draw(10) === 0))
            corpus.length < 400 ? corpus.push(text) : corpus[draw(400)] = text;
    }
    done(result);
}).catch((error) => done({ runs: 0, accepted: 0, problem: String(error?.stack ?? error), kept: [] }));
