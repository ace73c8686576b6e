// A conversation and its answer in progress, which continues when another conversation is shown. thread.js displays it.
//
// A message: { conversation, n, parent, role, content, created } and, if they apply, reasoning, reasoning_ms, files,
// tool_calls: [{ id, name, arguments }], tool_call_id, model, stats, error and state: "streaming", "done", "stopped"
// (by the user), "cut" (by a lost connection or a reload), "full" (by a limit of tokens) or "failed".
//
// A record: { id, title, created, updated } and, if they apply, leaf, the number of a message of the branch shown, and
// first, that of the first message which still fits into the context.
import * as api from "./api.js";
import { link, pathThrough, versionsOf } from "./branches.js";
import { firstToSend } from "./context.js";
import { local, randomId } from "./dom.js";
import { withFiles } from "./files.js";
import * as store from "./store.js";

const SAVE_MS = 1000;
const DRAFT = "quern.draft";

// A title: the beginning of the first message.
const titleOf = (text) => {
    const line = text.trim().split("\n")[0].replace(/\s+/g, " ");
    return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line;
};

const has_something = (message) => message.role !== "assistant" || message.content || message.reasoning
    || message.tool_calls;

// The members of a message that requests send.
function sent(message) {
    const result = { role: message.role, content: withFiles(message.content, message.files) };
    if (message.reasoning)
        result.reasoning_content = message.reasoning;
    if (message.tool_calls)
        result.tool_calls = message.tool_calls.map((call) =>
            ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    if (message.tool_call_id)
        result.tool_call_id = message.tool_call_id;
    return result;
}

// Events: "append", "update" and "finish" (detail: the message), "truncate" (detail: the number left), "branch"
// (detail: the number of messages that are as before), "change" (title, time, first message that is sent).
export class Conversation extends EventTarget {
    constructor(record, all = []) {
        super();
        this.record = record ?? { id: randomId(), title: "", created: Date.now(), updated: Date.now() };
        link(all);
        this.all = all; // in ascending order of their numbers
        this.messages = pathThrough(all, this.record.leaf);
        this.used = undefined; // tokens of the context, while an answer comes
        this.controller = null; // of the request in progress
        this.is_discarded = false;
    }

    static async load(id) {
        const [record, messages] = await Promise.all([store.get(id), store.messages(id)]);
        // A stored message cannot be streaming: the page was closed while it was.
        for (const message of messages)
            if (message.state === "streaming")
                message.state = "cut";
        return record ? new Conversation(record, messages) : null;
    }

    get id() {
        return this.record.id;
    }

    get is_busy() {
        return this.controller !== null;
    }

    rename(title) {
        this.record.title = title;
        this.#touch();
    }

    #touch() {
        this.record.updated = Date.now();
        if (!this.is_discarded)
            store.putConversation(this.record);
        this.#tell("change");
    }

    #tell(type, detail) {
        this.dispatchEvent(new CustomEvent(type, { detail }));
    }

    #append(message) {
        Object.assign(message, { conversation: this.id, n: (this.all.at(-1)?.n ?? -1) + 1,
            parent: this.messages.findLast(has_something)?.n ?? -1, created: Date.now() });
        this.all.push(message);
        this.messages.push(message);
        this.record.leaf = message.n;
        this.#keep(message);
        this.#tell("append", message);
        return message;
    }

    #keep(message) {
        if (!this.is_discarded && this.all.includes(message))
            store.putMessage(message);
    }

    // Ends the branch shown before an index: the next message begins another one there.
    branch(index) {
        this.messages.splice(index);
        this.record.leaf = this.messages.at(-1)?.n;
        // What failed without a text is no branch to go back to.
        this.all = this.all.filter(has_something);
        this.#tell("truncate", index);
    }

    versions(message) {
        return versionsOf(this.all, message);
    }

    // Shows the branch of another version of a message.
    choose(message) {
        const path = pathThrough(this.all, message.n), index = path.indexOf(message);
        this.messages = path;
        this.record.leaf = path.at(-1).n;
        this.#tell("branch", index);
        this.#touch();
    }

    // The index of the first message that fits into the context.
    get first() {
        return Math.max(0, this.messages.findIndex(({ n }) => n === this.record.first));
    }

    // The tokens of the context that the branch shown takes; undefined: none is known.
    get n_used() {
        const { stats } = this.messages.findLast(({ stats }) => stats?.prompt >= 0) ?? {};
        return this.used ?? (stats ? stats.prompt + (stats.tokens ?? 0) : undefined);
    }

    // The conversation is deleted: later text is not stored.
    discard() {
        this.is_discarded = true;
        this.stop();
    }

    // Asks a question; settings: from settings.request().
    async ask(content, files, settings) {
        if (!this.record.title)
            this.record.title = titleOf(content || files.map((file) => file.name).join(", "));
        this.#append({ role: "user", content, ...(files.length ? { files } : {}) });
        this.#touch();
        await this.answer(settings);
    }

    stop() {
        this.controller?.abort();
    }

    // The body of a request for the messages from an index on.
    #body(index, { system, n_ctx, ...options }) {
        const messages = this.messages.slice(index).filter(has_something).map(sent);
        if (system)
            messages.unshift({ role: "system", content: system });
        return { ...options, messages };
    }

    // Leaves the oldest turns out if the context is full.
    async #fit(settings, signal) {
        const messages = this.messages.slice(0, -1), { first } = this;
        const index = await firstToSend(messages, first, settings,
            (i) => api.countTokens(this.#body(i, settings), signal));
        if (index !== first) {
            this.record.first = messages[index].n;
            this.#touch();
        }
        return index;
    }

    // Answers the existing messages.
    async answer(settings) {
        const message = this.#append({ role: "assistant", content: "", state: "streaming", model: settings.model });
        const run = { message, started: performance.now(), first: 0, thought: 0, n: 0, n_ctx: settings.n_ctx };
        const controller = this.controller = new AbortController();
        running.set(this.id, { conversation: this, message });
        const timer = setInterval(() => this.#keep(message), SAVE_MS);
        this.#touch();
        let failure = null;
        try {
            const index = await this.#fit(settings, controller.signal);
            run.from = this.messages[index].n;
            const body = { ...this.#body(index, settings), stream: true, stream_options: { include_usage: true },
                timings_per_token: true };
            for await (const chunk of api.chat(body, controller.signal)) {
                if (controller.signal.aborted)
                    break;
                receive(run, chunk);
                this.used = usedOf(run);
                this.#tell("update", message);
            }
        } catch (error) {
            failure = error;
        }
        clearInterval(timer);
        this.#end(run, controller.signal.aborted ? "stopped" : null, failure);
    }

    #end(run, state, failure) {
        const { message } = run;
        endReasoning(run);
        if (state) {
            message.state = state;
        } else if (failure) {
            const { kind, message: text } = failure;
            message.state = kind === "cut" || (kind === "gone" && message.content) ? "cut" : "failed";
            message.error = text;
            message.error_kind = kind ?? "failed";
            if (!kind)
                console.error(failure);
        } else {
            message.state = run.finish === "length" ? "full" : "done";
        }
        message.stats = stats(run);
        this.controller = null;
        this.used = undefined;
        running.delete(this.id);
        // An answer without text is not stored; its error is shown until the page is left.
        if (has_something(message))
            this.#keep(message);
        else if (!this.is_discarded)
            store.removeMessage(this.id, message.n);
        this.#tell("finish", message);
        this.#touch();
    }
}

// The answers in progress, by the ids of their conversations.
export const running = new Map();

function endReasoning(run) {
    if (run.thought && run.message.reasoning_ms === undefined)
        run.message.reasoning_ms = Math.round(performance.now() - run.thought);
}

const text = (value) => (typeof value === "string" ? value : "");

function receive(run, chunk) {
    const { message } = run;
    if (chunk.usage)
        run.usage = chunk.usage;
    if (chunk.timings)
        run.timings = chunk.timings;
    const choice = chunk.choices?.[0];
    if (!choice)
        return;
    if (choice.finish_reason)
        run.finish = choice.finish_reason;
    const delta = choice.delta ?? {};
    const reasoning = text(delta.reasoning_content), content = text(delta.content);
    if (reasoning || content || delta.tool_calls) {
        run.first ||= performance.now();
        run.n++;
    }
    if (reasoning) {
        run.thought ||= performance.now();
        message.reasoning = (message.reasoning ?? "") + reasoning;
    }
    if (content || delta.tool_calls)
        endReasoning(run);
    message.content += content;
    for (const part of Array.isArray(delta.tool_calls) ? delta.tool_calls : []) {
        const i = Number.isInteger(part.index) && part.index >= 0 && part.index < 128 ? part.index : 0;
        message.tool_calls ??= [];
        while (message.tool_calls.length <= i)
            message.tool_calls.push({ id: "", name: "", arguments: "" });
        const call = message.tool_calls[i];
        call.id += text(part.id);
        call.name += text(part.function?.name);
        call.arguments += text(part.function?.arguments);
    }
}

// The tokens of the context so far, by the times that come with each token.
function usedOf({ timings }) {
    const { cache_n = 0, prompt_n, predicted_n } = timings ?? {};
    return Number.isFinite(prompt_n + cache_n + predicted_n) ? prompt_n + cache_n + predicted_n : undefined;
}

// The numbers shown below an answer, by the server's clock if it sends times.
function stats({ usage, timings, started, first, n, n_ctx, from }) {
    const now = performance.now(), number = (value) => (Number.isFinite(value) ? value : undefined);
    const generated = number(usage?.completion_tokens) ?? number(timings?.predicted_n);
    const seconds = (now - first) / 1000;
    return {
        tokens: generated,
        prompt: number(usage?.prompt_tokens),
        cached: number(usage?.prompt_tokens_details?.cached_tokens) ?? number(timings?.cache_n),
        speed: number(timings?.predicted_per_second)
            ?? (generated > 1 && n > 1 && seconds > 0 ? (generated - 1) / seconds : undefined),
        drafted: number(timings?.draft_n),
        accepted: number(timings?.draft_n_accepted),
        first_ms: first ? Math.round(first - started) : undefined,
        n_ctx,
        from,
    };
}

// ---- Answers interrupted by a reload ----

// IndexedDB writes nothing when a page is left, local storage does: it gets the last second of each answer.
addEventListener("pagehide", () => {
    const drafts = [...running.values()].map(({ message }) => message);
    if (drafts.length)
        local.set(DRAFT, JSON.stringify(drafts));
});

// Moves the drafts into their conversations, before anything is loaded.
export async function recoverDrafts() {
    const drafts = local.get(DRAFT);
    if (!drafts)
        return;
    local.set(DRAFT, null);
    try {
        for (const message of JSON.parse(drafts))
            if (await store.get(message.conversation))
                await store.putMessage({ ...message, state: "cut" });
    } catch { /* not written by this page */ }
}
