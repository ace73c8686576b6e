// The state of the server: which models it has, whether it is reachable, and when it returns.
import * as api from "./api.js";
import { byId, element } from "./dom.js";
import * as settings from "./settings.js";

const RETRY_MS = [1000, 1000, 2000, 2000, 3000, 5000];
const CONNECTED_MS = 3000;

const TEXTS = {
    gone: "The server does not answer. Trying again…",
    loading: "The server is loading its model…",
    key: "The server needs an API key.",
};
const LABELS = { ok: "Connected", gone: "No connection", loading: "Loading", key: "API key needed" };

// State: "unknown", "ok", "gone", "loading" or "key".
export class Server {
    // on: { key(), changed() }: the server needs another key; it says something else about the model
    constructor(on) {
        this.on = on;
        this.state = "unknown";
        this.n_tries = 0;
        this.timer = 0;
        this.models = [];
        byId("models").addEventListener("change", ({ target }) =>
            settings.set("model", target.title = target.value));
        addEventListener("online", () => this.check());
        document.addEventListener("visibilitychange", () => !document.hidden && this.check());
    }

    // What the server says of the model that answers: { name, n_ctx, reasoning }; undefined: it was not asked yet.
    get model() {
        return this.models.find(({ name }) => name === settings.get("model"));
    }

    // Asks the server, repeatedly until it answers.
    async check() {
        clearTimeout(this.timer);
        this.timer = 0;
        try {
            await api.health();
            this.models = await api.models();
            this.#models(this.models.map(({ name }) => name));
            if (this.state !== "ok") {
                const { params } = await api.defaults();
                settings.setDefaults(params);
            }
            this.on.changed();
            this.#set("ok");
        } catch (error) {
            this.failed(error);
        }
    }

    // A request failed: the error may tell the server's state.
    failed(error) {
        if (!["gone", "loading", "key"].includes(error.kind))
            return this.#set("ok");
        this.#set(error.kind);
        if (error.kind === "key")
            this.on.key();
        else if (!this.timer)
            this.timer = setTimeout(() => this.check(), RETRY_MS[Math.min(this.n_tries++, RETRY_MS.length - 1)]);
    }

    #set(state) {
        const before = this.state;
        this.state = state;
        const dot = byId("state"), notice = byId("notice");
        dot.className = `dot ${state}`;
        dot.setAttribute("aria-label", LABELS[state]);
        dot.title = LABELS[state];
        if (state === before)
            return;
        if (state !== "ok") {
            const action = state === "key" ? element("button", { type: "button", on: { click: () => this.on.key() } },
                "Enter the key")
                : element("button", { type: "button", on: { click: () => this.check() } }, "Try now");
            notice.className = state;
            notice.replaceChildren(element("span", {}, TEXTS[state]), action);
            notice.hidden = false;
            return;
        }
        this.n_tries = 0;
        notice.hidden = true;
        if (before === "gone" || before === "loading") {
            notice.className = "ok";
            notice.replaceChildren(element("span", {}, "The server is back."));
            notice.hidden = false;
            setTimeout(() => notice.hidden ||= this.state === "ok", CONNECTED_MS);
        }
    }

    #models(names) {
        const select = byId("models"), one = byId("model");
        if (!names.includes(settings.get("model")))
            settings.set("model", names[0]);
        const chosen = settings.get("model") ?? "";
        select.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
        select.value = select.title = chosen;
        select.hidden = names.length < 2;
        one.hidden = names.length >= 2;
        one.textContent = one.title = chosen;
    }
}
