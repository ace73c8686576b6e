// Conversations as a file: export, and import, which trusts nothing in it.
import { link } from "./branches.js";
import { download, randomId } from "./dom.js";
import { cleanName, MAX_FILE, MAX_FILES } from "./files.js";
import * as store from "./store.js";

const FORMAT = "quern-conversations";
const MAX_IMPORT = 64 * 1024 * 1024;
const MAX_CONVERSATIONS = 10000;
const MAX_MESSAGES = 100000;
const MAX_TEXT = 4 * 1024 * 1024;
const STATES = ["done", "stopped", "cut", "full", "failed"];
const ROLES = ["user", "assistant", "tool", "system"];

// A conversation for a file. Numbers of messages become their indices.
async function exported({ id, title, created, updated, leaf, first }) {
    const all = await store.messages(id), at = new Map(all.map(({ n }, i) => [n, i]));
    link(all);
    const messages = all.map(({ conversation, n, parent, ...message }) =>
        ({ ...message, parent: at.get(parent) ?? -1 }));
    return { title, created, updated, leaf: at.get(leaf), first: at.get(first), messages };
}

// Readers of version 1 take each message for the answer to the one before it.
const hasBranches = ({ messages }) => messages.some(({ parent }, i) => parent !== i - 1);

// ids: the conversations to export, in this order.
export async function exportConversations(ids) {
    const conversations = [];
    for (const id of ids) {
        const record = await store.get(id);
        if (!record)
            continue;
        conversations.push(await exported(record));
    }
    const name = conversations.length === 1 ? conversations[0].title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0,
        40).replace(/^-|-$/g, "") : "conversations";
    download(`quern-${name || "conversation"}.json`, "application/json",
        JSON.stringify({ format: FORMAT, version: conversations.some(hasBranches) ? 2 : 1, exported: Date.now(),
            conversations }, null, 1));
}

function fail(where, found, expected) {
    const shown = found === null ? "null" : Array.isArray(found) ? "a list" : typeof found === "object" ? "an object"
        : JSON.stringify(found)?.slice(0, 60) ?? "missing";
    throw new Error(`${where} is ${shown}, expected ${expected}.`);
}

const is = {
    text: (value) => typeof value === "string" && value.length <= MAX_TEXT,
    time: (value) => Number.isFinite(value) && value > 0 && value < 1e14,
    object: (value) => typeof value === "object" && value !== null && !Array.isArray(value),
    index: (value, n) => Number.isInteger(value) && value >= 0 && value < n,
    list: (value, most) => Array.isArray(value) && value.length <= most,
};

// Copies the known fields one by one; a field of a wrong type is an error.
function readMessage(value, where) {
    if (!is.object(value))
        fail(where, value, "a message");
    if (!ROLES.includes(value.role))
        fail(`${where}.role`, value.role, ROLES.join(", "));
    if (!is.text(value.content ?? ""))
        fail(`${where}.content`, value.content, "a text");
    const message = { role: value.role, content: value.content ?? "",
        created: is.time(value.created) ? value.created : Date.now() };
    const reasoning = value.reasoning ?? value.reasoning_content;
    for (const [name, found] of Object.entries({ reasoning, model: value.model, error: value.error,
        tool_call_id: value.tool_call_id })) {
        if (found === undefined || found === null)
            continue;
        if (!is.text(found))
            fail(`${where}.${name}`, found, "a text");
        message[name] = found;
    }
    if (value.role === "assistant")
        message.state = STATES.includes(value.state) ? value.state : value.state === "streaming" ? "cut" : "done";
    if (Number.isFinite(value.reasoning_ms) && value.reasoning_ms >= 0)
        message.reasoning_ms = value.reasoning_ms;
    if (is.object(value.stats))
        message.stats = Object.fromEntries(["tokens", "prompt", "cached", "speed",
            "drafted", "accepted", "first_ms", "n_ctx"].filter((name) => Number.isFinite(value.stats[name]))
            .map((name) => [name, value.stats[name]]));
    if (value.files !== undefined) {
        if (!is.list(value.files, MAX_FILES))
            fail(`${where}.files`, value.files, `a list of at most ${MAX_FILES}`);
        message.files = value.files.map((file, i) => {
            if (!is.object(file) || !is.text(file.name) || !is.text(file.text) || file.text.length > MAX_FILE)
                fail(`${where}.files[${i}]`, file, "a name and a text");
            return { name: cleanName(file.name), text: file.text };
        });
    }
    if (value.tool_calls !== undefined && value.tool_calls !== null) {
        if (!is.list(value.tool_calls, 128))
            fail(`${where}.tool_calls`, value.tool_calls, "a list of at most 128");
        message.tool_calls = value.tool_calls.map((call, i) => {
            const { name, arguments: text } = call?.function ?? call ?? {};
            if (!is.text(name) || !is.text(text))
                fail(`${where}.tool_calls[${i}]`, call, "a name and arguments as text");
            return { id: is.text(call.id) ? call.id : "", name, arguments: text };
        });
    }
    return message;
}

function readConversation(value, where) {
    if (!is.object(value) || !is.list(value.messages, MAX_MESSAGES))
        fail(`${where}.messages`, value?.messages, `a list of at most ${MAX_MESSAGES}`);
    const id = randomId();
    const messages = value.messages.map((message, n) =>
        ({ ...readMessage(message, `${where}.messages[${n}]`), conversation: id, n,
            parent: message.parent === -1 || is.index(message.parent, n) ? message.parent : n - 1 }));
    const title = is.text(value.title) ? value.title : messages.find(({ role }) => role === "user")?.content ?? "";
    return {
        conversation: {
            id, title: title.trim().split("\n")[0].slice(0, 200) || "Imported",
            created: is.time(value.created) ? value.created : Date.now(),
                updated: is.time(value.updated) ? Math.min(value.updated, Date.now()) : Date.now(),
            ...Object.fromEntries(["leaf", "first"].filter((name) => is.index(value[name], messages.length))
                .map((name) => [name, value[name]])),
        },
        messages,
    };
}

// The conversations of a text: an export of this page, a list of messages as `quern chat` saves one, or { messages }.
export function parse(text) {
    let value;
    try {
        value = JSON.parse(text);
    } catch {
        throw new Error("The file is not valid JSON.");
    }
    if (Array.isArray(value))
        value = { messages: value };
    if (is.object(value) && is.list(value.messages, MAX_MESSAGES))
        return [readConversation(value, "the conversation")];
    if (!is.object(value) || value.format !== FORMAT)
        throw new Error("The file has no conversations.");
    if (value.version !== 1 && value.version !== 2)
        fail("version", value.version, "1 or 2");
    if (!is.list(value.conversations, MAX_CONVERSATIONS))
        fail("conversations", value.conversations, `a list of at most ${MAX_CONVERSATIONS}`);
    return value.conversations.map((conversation, i) => readConversation(conversation, `conversations[${i}]`));
}

// Stores all conversations of a File, or none. Returns their ids; throws an Error whose text is for the user.
export async function importFile(file) {
    if (file.size > MAX_IMPORT)
        throw new Error(`The file has ${Math.ceil(file.size / 1048576)} MB; `
            + `at most ${MAX_IMPORT / 1048576} MB are imported.`);
    const entries = parse(await file.text());
    if (!await store.addAll(entries))
        throw new Error("Nothing was imported.");
    return entries.map((entry) => entry.conversation.id);
}
