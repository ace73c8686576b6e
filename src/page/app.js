// The page: connects the server, the list of conversations, the conversation shown and the message box.
import * as api from "./api.js";
import { Composer } from "./composer.js";
import { reserveOf } from "./context.js";
import { Conversation, recoverDrafts, running } from "./conversation.js";
import { byId, element, iconButton, local, perFrame, session, toast } from "./dom.js";
import { Server } from "./server.js";
import * as settings from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { Thread } from "./thread.js";
import { exportConversations, importFile } from "./transfer.js";

const STARTERS = ["Explain how a mill turns grain into flour.", "Write a C function that reverses a list.",
    "Compare tea and coffee in a table.",
    "Tell me a short story."];
const THEMES = ["auto", "light", "dark"];
const NARROW = matchMedia("(max-width: 760px)");

let current = new Conversation();
let wanted = current.id; // the conversation selected last: `current`, or one that is being loaded
let is_untouched = true; // the user did not choose a conversation yet, nor begin one
let ask_again = null; // called after a key was entered

// ---- Which conversation is shown ----

function show(conversation) {
    if (!current.is_busy)
        current.removeEventListener("change", changed);
    current.removeEventListener("update", meterSoon);
    current = conversation;
    wanted = current.id;
    current.addEventListener("change", changed);
    current.addEventListener("update", meterSoon);
    session.set("quern.open", current.record.title ? current.id : null);
    thread.show(current);
    sidebar.select(current.id);
    draw();
}

function changed({ target }) {
    if (!target.is_discarded && target.record.title)
        sidebar.changed(target.record);
    if (target === current)
        draw();
}

function draw() {
    const { title } = current.record;
    byId("title").textContent = title || "New conversation";
    document.title = title ? `${title} · quern` : "quern";
    byId("main").classList.toggle("is-busy", current.is_busy);
    composer.set_busy(current.is_busy);
    const thinking = settings.get("thinking"), button = byId("thinking");
    button.hidden = !server.model?.reasoning?.is_optional;
    button.textContent = thinking === "default" ? "Thinking" : `Thinking ${thinking}`;
    button.className = `pill ${thinking}`;
    button.title = "Thinking: server default, on, or off";
    thread.mark_first();
    drawMeter();
}

// How much of the context the conversation takes.
function drawMeter() {
    const meter = byId("meter"), n_ctx = server.model?.n_ctx, { n_used } = current;
    meter.hidden = !n_ctx || n_used === undefined;
    if (meter.hidden)
        return;
    const share = Math.min(1, n_used / n_ctx), percent = Math.round(100 * share);
    const text = `${n_used.toLocaleString("en")} of ${n_ctx.toLocaleString("en")} tokens of the context`;
    const is_full = n_used > n_ctx - reserveOf(n_ctx, settings.get("max_tokens"));
    meter.classList.toggle("is-full", is_full);
    meter.title = is_full ? `${text}. The next question leaves the oldest messages out.` : text;
    meter.setAttribute("aria-valuemax", n_ctx);
    meter.setAttribute("aria-valuenow", Math.min(n_used, n_ctx));
    meter.setAttribute("aria-valuetext", text);
    meter.querySelector(".used").setAttribute("stroke-dasharray", `${percent} 100`);
    meter.querySelector("span").textContent = `${percent}%`;
}

const meterSoon = perFrame(drawMeter);

function create() {
    is_untouched = false;
    if (current.messages.length)
        show(new Conversation());
    wanted = current.id;
    drawer(false);
    composer.focus();
}

async function open(id) {
    is_untouched = false;
    drawer(false);
    wanted = id;
    if (id === current.id)
        return composer.focus();
    const conversation = running.get(id)?.conversation ?? await Conversation.load(id);
    if (wanted !== id)
        return;
    if (!conversation)
        return toast("This conversation no longer exists.", { at: "side" }), sidebar.refresh();
    show(conversation);
    composer.focus();
}

// ---- Asking ----

const request = () => settings.request(server.model);

async function run(work) {
    const conversation = current;
    is_untouched = false;
    session.set("quern.open", conversation.id);
    sidebar.select(conversation.id);
    const finished = new Promise((resolve) =>
        conversation.addEventListener("finish", ({ detail }) => resolve(detail), { once: true }));
    const key = api.getKey();
    work(conversation);
    const message = await finished;
    if (server.model?.n_ctx === undefined && message.content)
        server.check(); // it knows more of a model that it has loaded
    if (message.error_kind === "key") {
        const again = () => current === conversation && actions.regenerate(message);
        if (api.getKey() !== key) // it was entered while the server refused the one before
            return void again();
        ask_again = again;
    }
    // A cut connection says little: the server may still be running.
    if (message.error_kind === "cut" || message.error_kind === "gone")
        server.check();
    else if (message.error_kind)
        server.failed({ kind: message.error_kind });
}

const actions = {
    edit(message) {
        if (current.is_busy)
            return;
        const conversation = current;
        thread.edit(message, (text) => {
            const index = conversation.messages.indexOf(message);
            if (text === null || conversation.is_busy || index < 0 || (!text.trim() && !message.files))
                return composer.focus();
            conversation.branch(index);
            run(() => conversation.ask(text.trim(), message.files ?? [], request()));
            composer.focus();
        });
    },
    regenerate(message) {
        const index = current.messages.indexOf(message);
        if (current.is_busy || index < 0)
            return;
        current.branch(index);
        run((conversation) => conversation.answer(request()));
        composer.focus();
    },
    versions: (message) => current.versions(message),
    choose(message) {
        if (!current.is_busy)
            current.choose(message);
    },
};

// ---- The key ----

function askKey() {
    const dialog = byId("key");
    if (dialog.open)
        return;
    const input = element("input", { type: "password", id: "key-input", autocomplete: "off", "aria-label": "API key" });
    input.value = api.getKey();
    const submit = (event) => {
        event.preventDefault();
        api.setKey(input.value.trim());
        dialog.close();
        const again = ask_again;
        ask_again = null;
        server.check();
        again?.();
    };
    dialog.replaceChildren(element("form", { method: "dialog", on: { submit } },
        element("header", {}, element("h2", { id: "key-title" }, "API key"),
            iconButton("close", "Close", () => dialog.close())),
        api.getKey() ? element("p", { class: "wrong" }, "The server did not accept the last key.") : null,
        element("p", {},
            "This server needs an API key. The key is kept until this tab is closed, and sent only to this server."),
            input,
        element("div", { class: "row" }, element("button", { type: "submit", class: "primary" }, "Use this key"))));
    dialog.showModal();
    input.select();
}

// ---- Colours, drawer, keys ----

function theme(change) {
    let name = local.get("quern.theme") ?? "auto";
    if (change)
        name = THEMES[(THEMES.indexOf(name) + 1) % THEMES.length];
    local.set("quern.theme", name === "auto" ? null : name);
    if (name === "auto")
        delete document.documentElement.dataset.theme;
    else
        document.documentElement.dataset.theme = name;
    const label = `Colours: ${name === "auto" ? "those of the system" : name}`;
    byId("theme").title = label;
    byId("theme").setAttribute("aria-label", label);
}

// The list of conversations: over the page in a narrow window, next to it in a wide one.
function drawer(is_open) {
    const sidebar = byId("sidebar"), is_shown = NARROW.matches ? is_open : !document.body.classList.contains("is-wide");
    sidebar.classList.toggle("is-open", NARROW.matches && is_open);
    sidebar.inert = !is_shown;
    byId("shade").hidden = !(NARROW.matches && is_open);
    byId("main").inert = NARROW.matches && is_open;
    byId("menu").setAttribute("aria-expanded", String(is_shown));
    if (NARROW.matches && is_open)
        byId("new").focus();
}

function toggleDrawer() {
    if (NARROW.matches)
        return drawer(!byId("sidebar").classList.contains("is-open"));
    document.body.classList.toggle("is-wide");
    drawer(false);
}

function keys(event) {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
        if (byId("sidebar").classList.contains("is-open"))
            return drawer(false);
        current.stop();
        composer.focus();
    }
    if (!(event.ctrlKey || event.metaKey))
        return;
    if (event.shiftKey && event.key.toLowerCase() === "o") {
        event.preventDefault();
        create();
    } else if (!event.shiftKey && event.key.toLowerCase() === "k") {
        event.preventDefault();
        if (byId("sidebar").inert)
            toggleDrawer();
        byId("search").focus();
    }
}

async function importConversations(file) {
    try {
        const ids = await importFile(file);
        await sidebar.refresh();
        byId("settings").close();
        if (ids.length)
            open(ids[0]);
        toast(ids.length === 1 ? "Imported a conversation." : `Imported ${ids.length} conversations.`, { at: "side" });
    } catch (error) {
        toast(error.message, { at: "side" });
    }
}

const server = new Server({ key: askKey, changed: () => draw() });
const thread = new Thread(actions);
const composer = new Composer({
    send: (text, files) => run((conversation) => conversation.ask(text, files, request())),
    stop: () => current.stop(),
    edit_last: () => {
        const last = current.messages.findLast(({ role }) => role === "user");
        if (last)
            actions.edit(last);
    },
});
const sidebar = new Sidebar({
    open,
    async renamed(id, title) {
        const conversation = id === current.id ? current : running.get(id)?.conversation ?? await Conversation.load(id);
        conversation?.addEventListener("change", changed, { once: true });
        conversation?.rename(title);
    },
    async deleted(id) {
        (id === current.id ? current : running.get(id)?.conversation)?.discard();
        await store.remove(id);
        if (id === wanted)
            show(new Conversation());
    },
    restored: open,
});

// Another tab changed a conversation; null: several.
async function changedElsewhere(id) {
    await sidebar.refresh();
    if (id === wanted && id === current.id && !current.is_busy) {
        const conversation = await Conversation.load(id);
        if (conversation && id === wanted && !current.is_busy)
            show(conversation);
    }
}

async function start() {
    const last = session.get("quern.open");
    theme(false);
    drawer(false);
    NARROW.addEventListener("change", () => drawer(false));
    settings.onChange(draw);
    byId("theme").addEventListener("click", () => theme(true));
    byId("menu").addEventListener("click", toggleDrawer);
    byId("shade").addEventListener("click", () => drawer(false));
    byId("new").addEventListener("click", create);
    byId("thinking").addEventListener("click", settings.nextThinking);
    byId("open-settings").addEventListener("click", () => settings.showDialog(server.model, {
        exportAll: () => exportConversations(sidebar.records.map(({ id }) => id)),
        import: () => byId("import-file").click(),
        changeKey: askKey,
    }));
    byId("import-file").addEventListener("change", async ({ target }) => {
        if (target.files[0])
            await importConversations(target.files[0]);
        target.value = "";
    });
    addEventListener("keydown", keys);
    byId("starters").append(...STARTERS.map((text) =>
        element("button", { type: "button", on: { click: () => (composer.set_text(text), composer.focus()) } }, text)));
    show(current);
    if (!NARROW.matches)
        composer.focus();
    server.check();
    await store.open((text) => toast(text), changedElsewhere);
    await recoverDrafts();
    await sidebar.refresh();
    const is_there = last && await store.get(last);
    if (is_there && is_untouched)
        open(last);
}

start();
