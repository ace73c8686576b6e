// One message as an element. Far from the window it shows its text unrendered, so that the browser finds words in it;
// it is rendered when it comes near.
import { copyButton, element, icon, iconButton } from "./dom.js";
import { withFiles } from "./files.js";
import { LiveMarkdown } from "./live.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of a tool", system: "System" };
// Notes below incomplete answers.
const NOTES = {
    stopped: "Stopped.",
    cut: "Cut off: this is only a part of the answer.",
    full: "The answer reached the limit of tokens.",
    failed: "The answer failed.",
};
const FOLDED_LINES = 12, FOLDED_LENGTH = 1200; // of a message of one's own, which is folded beyond them

export const seconds = (ms) => (ms < 950 ? `${Math.max(0.1, ms / 1000).toFixed(1)} s` : ms < 59500
    ? `${Math.round(ms / 1000)} s`
    : `${Math.floor(ms / 60000)} min ${Math.round(ms % 60000 / 1000)} s`);

const count = (n) => n.toLocaleString("en");

// "42 tokens/s, 318 tokens, ..."
function statsText({ speed, tokens, prompt, cached, drafted, accepted = 0, first_ms }) {
    const parts = [];
    if (speed !== undefined)
        parts.push(`${speed < 10 ? speed.toFixed(1) : Math.round(speed)} tokens/s`);
    if (tokens !== undefined)
        parts.push(`${count(tokens)} ${tokens === 1 ? "token" : "tokens"}`);
    if (drafted && tokens > accepted)
        parts.push(`${(tokens / (tokens - accepted)).toFixed(1)} tokens a step`);
    if (prompt !== undefined)
        parts.push(`prompt ${count(prompt)}${cached ? ` (${count(cached)} cached)` : ""}`);
    if (first_ms !== undefined)
        parts.push(`first after ${seconds(first_ms)}`);
    return parts.join(" · ");
}

function noteOf({ state, error, stats }) {
    if (error)
        return `${state === "cut" ? "Cut off: " : ""}${error}`;
    const { prompt = 0, tokens = 0, n_ctx } = stats ?? {};
    return state === "full" && prompt + tokens >= n_ctx
        ? `The answer ends here: the context of ${count(n_ctx)} tokens is full.` : NOTES[state];
}

function fold(kind, title, ...children) {
    return element("details", { class: `fold ${kind}` }, element("summary", {}, icon("fold"), title),
        element("div", { class: "inside" }, ...children));
}

function pretty(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text; // it may be incomplete
    }
}

const toolCall = (call) => fold("call", element("span", {}, icon("tool"), "Calls ",
    element("code", {}, call.name || "…")),
    element("pre", {}, element("code", {}, pretty(call.arguments))));

export class MessageView {
    // actions: { edit(message), regenerate(message), versions(message), choose(message) }
    constructor(message, actions) {
        this.message = message;
        this.actions = actions;
        this.is_rendered = false;
        this.body = element("div", { class: "body" });
        this.foot = element("div", { class: "foot" });
        this.element = element("article", { class: `message ${message.role}`, "aria-label": NAMES[message.role] },
            this.body, this.foot);
        // An estimate until the height is known.
        const lines = Math.ceil(message.content.length / 80) + message.content.split("\n").length;
        this.element.style.containIntrinsicSize = `auto ${Math.min(60 + lines * 22, 4000)}px`;
        this.body.append(element("div", { class: "plain" }, message.content));
    }

    // Renders the message, once.
    render() {
        if (this.is_rendered)
            return;
        this.is_rendered = true;
        const { message } = this;
        this.body.replaceChildren();
        if (message.role === "user")
            this.#user();
        else if (message.role === "assistant")
            this.#assistant();
        else
            this.body.append(fold("call", NAMES[message.role], element("pre", {}, message.content)));
        this.#foot();
    }

    #user() {
        for (const { name, text } of this.message.files ?? [])
            this.body.append(fold("file", element("span", {}, icon("file"), name),
                element("pre", { tabindex: "0" }, text)));
        if (this.message.content)
            this.body.append(this.#bubble(this.message.content));
    }

    #bubble(content) {
        const text = element("div", { class: "plain" }, content), bubble = element("div", { class: "bubble" }, text);
        if (content.length <= FOLDED_LENGTH && content.split("\n").length <= FOLDED_LINES)
            return bubble;
        const button = element("button", { type: "button", class: "plain-button", "aria-expanded": "false", on: {
            click: () => {
                const is_open = !bubble.classList.toggle("is-folded");
                button.textContent = is_open ? "Show less" : "Show all";
                button.setAttribute("aria-expanded", String(is_open));
            } } }, "Show all");
        bubble.classList.add("is-folded");
        bubble.append(button);
        return bubble;
    }

    #assistant() {
        const { message } = this;
        this.content = element("div", { class: "markdown" });
        this.live = new LiveMarkdown(this.content);
        this.calls = element("div", { class: "calls" });
        this.body.append(this.content, this.calls);
        if (message.state === "streaming")
            this.update();
        else
            this.finish();
    }

    #reasoning() {
        const { message } = this;
        if (!message.reasoning)
            return;
        if (!this.thoughts) {
            this.thoughts = document.createTextNode("");
            this.thought_title = element("span", {});
            this.thought_fold = fold("reasoning", this.thought_title,
                element("div", { class: "plain" }, this.thoughts));
            this.body.prepend(this.thought_fold);
        }
        if (this.thoughts.length < message.reasoning.length)
            this.thoughts.appendData(message.reasoning.slice(this.thoughts.length));
        const is_going_on = message.state === "streaming" && message.reasoning_ms === undefined;
        this.thought_fold.classList.toggle("going-on", is_going_on);
        const title = is_going_on ? "Thinking" : message.reasoning_ms === undefined ? "Reasoning"
            : `Thought for ${seconds(message.reasoning_ms)}`;
        if (this.thought_title.textContent !== title)
            this.thought_title.textContent = title;
    }

    #calls() {
        const open = [...this.calls.children].map((fold) => fold.open);
        this.calls.replaceChildren(...(this.message.tool_calls ?? []).map(toolCall));
        [...this.calls.children].forEach((fold, i) => fold.open = open[i] ?? false);
    }

    // More of a streaming answer arrived.
    update() {
        if (!this.is_rendered)
            return this.render();
        const { message } = this;
        this.element.setAttribute("aria-busy", "true");
        this.element.classList.toggle("waiting", !message.content && !message.reasoning && !message.tool_calls);
        this.#reasoning();
        this.live.set(message.content);
        if (message.tool_calls)
            this.#calls();
    }

    // The answer is complete, or has ended early.
    finish() {
        if (!this.is_rendered)
            return this.render();
        this.element.setAttribute("aria-busy", "false");
        this.element.classList.remove("waiting");
        this.#reasoning();
        this.live.finish(this.message.content);
        this.#calls();
        this.#foot();
    }

    // Which version of the message this is, and the way to the others; null: there is one.
    #versions() {
        const versions = this.actions.versions(this.message), at = versions.indexOf(this.message);
        if (versions.length < 2 || at < 0)
            return null;
        const button = (name, label, other) => {
            const result = iconButton(name, label, () => this.actions.choose(other));
            result.disabled = !other;
            return result;
        };
        return element("span", { class: "versions", role: "group", "aria-label": "Versions" },
            button("previous", "Previous version", versions[at - 1]),
            element("span", {}, `${at + 1}/${versions.length}`),
            button("next", "Next version", versions[at + 1]));
    }

    #foot() {
        const { message, actions } = this;
        this.foot.replaceChildren();
        if (message.state === "streaming")
            return;
        const is_broken = ["stopped", "cut", "failed"].includes(message.state);
        const note = noteOf(message);
        if (note)
            this.foot.append(element("p", { class: `note ${message.state}` }, note,
                is_broken ? element("button", { type: "button", on: { click: () => actions.regenerate(message) } },
                    "Try again") : null));
        const buttons = element("div", { class: "buttons" }, this.#versions());
        if (message.content || message.files)
            buttons.append(copyButton("Copy",
                () => (message.role === "user" ? withFiles(message.content, message.files) : message.content)));
        if (message.role === "user")
            buttons.append(iconButton("edit", "Edit and ask again", () => actions.edit(message)));
        if (message.role === "assistant" && !is_broken)
            buttons.append(iconButton("again", "Answer again", () => actions.regenerate(message)));
        if (message.stats)
            buttons.append(element("span", { class: "stats" }, statsText(message.stats)));
        this.foot.append(buttons);
    }
}
