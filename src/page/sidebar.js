// The list of conversations, by time, with search, rename, export and delete.
import { byId, element, iconButton, perFrame, toast } from "./dom.js";
import * as store from "./store.js";
import { exportConversations } from "./transfer.js";

const DAY = 86400000;

function group(time) {
    const midnight = new Date().setHours(0, 0, 0, 0);
    return time >= midnight ? "Today" : time >= midnight - DAY ? "Yesterday" : time >= midnight - 7 * DAY
        ? "Last 7 days"
        : time >= midnight - 30 * DAY ? "Last 30 days" : "Older";
}

export class Sidebar {
    // on: { open(id), renamed(id, title), deleted(id), restored(id) }
    constructor(on) {
        this.on = on;
        this.list = byId("conversations");
        this.records = [];
        this.current = null;
        this.found = null; // ids, during a search
        this.is_renaming = false;
        this.draw = perFrame(() => this.#draw());
        const search = byId("search");
        let timer = 0;
        search.addEventListener("input", () => {
            clearTimeout(timer);
            timer = setTimeout(() => this.#search(search.value.trim()), 120);
        });
        search.addEventListener("keydown", (event) => {
            if (event.key === "Escape") {
                event.stopPropagation();
                search.value = "";
                this.#search("");
            } else if (event.key === "Enter" || event.key === "ArrowDown") {
                event.preventDefault();
                this.list.querySelector(".open")?.focus();
            }
        });
        this.list.addEventListener("keydown", (event) => this.#arrows(event));
    }

    async refresh() {
        this.records = await store.list();
        this.draw();
    }

    // The record of a conversation is new or changed.
    changed(record) {
        this.records = [record, ...this.records.filter(({ id }) => id !== record.id)].sort((a, b) =>
            b.updated - a.updated);
        this.draw();
    }

    select(id) {
        this.current = id;
        this.draw();
    }

    async #search(text) {
        this.needle = text;
        if (!text) {
            this.found = null;
            return this.draw();
        }
        const found = await store.search(text, () => this.needle === text);
        if (!found || this.needle !== text)
            return;
        for (const { id, title } of this.records)
            if (title.toLowerCase().includes(text.toLowerCase()))
                found.add(id);
        this.found = found;
        this.draw();
    }

    #draw() {
        if (this.is_renaming)
            return;
        const focused = this.list.contains(document.activeElement) ? document.activeElement.dataset.id : null;
        const nodes = [];
        let last = null, items = null;
        for (const record of this.records) {
            if (this.found && !this.found.has(record.id))
                continue;
            const name = group(record.updated);
            if (name !== last)
                nodes.push(element("h2", {}, name), items = element("ul"));
            last = name;
            items.append(this.#item(record));
        }
        if (!nodes.length)
            nodes.push(element("p", { class: "none" }, this.found ? "Nothing found." : "No conversations yet."));
        this.list.replaceChildren(...nodes);
        if (focused)
            this.list.querySelector(`.open[data-id="${CSS.escape(focused)}"]`)?.focus();
    }

    #item(record) {
        const is_current = record.id === this.current;
        const item = element("li", { class: is_current ? "current" : null },
            element("button", { type: "button", class: "open", title: record.title, "data-id": record.id,
                "aria-current": is_current ? "true" : null,
                on: { click: () => this.on.open(record.id), dblclick: () => this.#rename(record, item) } },
                    record.title || "New conversation"),
            element("span", { class: "actions" },
                iconButton("edit", "Rename", () => this.#rename(record, item)),
                iconButton("save", "Export", () => exportConversations([record.id])),
                iconButton("delete", "Delete", () => this.#delete(record))));
        return item;
    }

    #arrows(event) {
        if (event.key !== "ArrowDown" && event.key !== "ArrowUp")
            return;
        const all = [...this.list.querySelectorAll(".open")], i = all.indexOf(document.activeElement);
        if (i < 0)
            return;
        event.preventDefault();
        (all[i + (event.key === "ArrowDown" ? 1 : -1)] ?? byId("search")).focus();
    }

    #rename(record, item) {
        const input = element("input", { type: "text", value: record.title, maxlength: "200", "aria-label": "Title" });
        this.is_renaming = true;
        let is_over = false;
        const end = (title) => {
            if (is_over)
                return;
            is_over = true;
            this.is_renaming = false;
            if (title && title !== record.title)
                this.on.renamed(record.id, title);
            this.draw();
        };
        input.addEventListener("keydown", (event) => {
            if (event.key === "Enter")
                end(input.value.trim());
            if (event.key === "Escape") {
                event.stopPropagation();
                end(null);
            }
        });
        input.addEventListener("blur", () => end(input.value.trim()));
        item.replaceChildren(input);
        input.select();
    }

    async #delete(record) {
        const messages = await store.messages(record.id);
        await this.on.deleted(record.id);
        this.records = this.records.filter(({ id }) => id !== record.id);
        this.draw();
        const undo = async () => {
            await store.addAll([{ conversation: record, messages }]);
            this.changed(record);
            this.on.restored(record.id);
        };
        toast(`Deleted “${record.title}”.`, { at: "side", action: { label: "Undo", run: undo } });
    }
}
