// The messages of the conversation shown: which are rendered, the scroll position, and the text for screen readers.
import { byId, element, perFrame } from "./dom.js";
import { MessageView } from "./message.js";

const NEAR_END = 80; // pixels from the end within which the window follows an answer
const NEAR = 1500; // pixels from the window within which messages are rendered
const FIRST = 12; // messages at the end that are rendered immediately
const MAX_SPOKEN = 3000;
const EVENTS = ["append", "update", "finish", "truncate", "branch"];
const SLOW = 8; // milliseconds of rendering after which the next rendering waits

export class Thread {
    // actions: as of MessageView
    constructor(actions) {
        this.actions = actions;
        this.scroller = byId("thread");
        this.list = byId("messages");
        this.conversation = null;
        this.mark = element("p", { class: "left-out", role: "note" },
            "The context is full: the messages above are no longer sent.");
        this.views = new Map(); // by message
        this.by_element = new WeakMap();
        this.is_following = true;
        this.dirty = null;
        this.not_before = 0;
        this.draw = perFrame(() => this.#draw());
        this.near = new IntersectionObserver((entries) => this.#approach(entries),
            { root: this.scroller, rootMargin: `${NEAR}px 0px` });
        new ResizeObserver(() => this.#follow()).observe(this.list);
        new ResizeObserver(() => this.#follow()).observe(this.scroller);
        this.last_top = 0;
        this.scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
        byId("latest").addEventListener("click", () => this.follow());
        for (const type of EVENTS)
            this[`on_${type}`] = ({ detail }) => this[type](detail);
    }

    show(conversation) {
        for (const type of EVENTS) {
            this.conversation?.removeEventListener(type, this[`on_${type}`]);
            conversation.addEventListener(type, this[`on_${type}`]);
        }
        this.conversation = conversation;
        this.near.disconnect();
        this.views.clear();
        this.dirty = null;
        const views = conversation.messages.map((message) => this.#create(message));
        for (const view of views.slice(-FIRST))
            view.render();
        this.list.replaceChildren(...views.map((view) => view.element));
        this.#counted();
        this.mark_first();
        this.follow();
    }

    // Another branch: the first n messages are as before. The window stays where it is.
    branch(n) {
        this.is_following = false;
        this.truncate(n);
        const views = this.conversation.messages.slice(n).map((message) => this.#create(message));
        views[0].render();
        this.list.append(...views.map((view) => view.element));
        this.#counted();
        this.mark_first();
    }

    // A line above the first message that still fits into the context, if that is not the first of all.
    mark_first() {
        const { first, messages } = this.conversation, view = first > 0 ? this.views.get(messages[first]) : null;
        this.mark.remove();
        if (view)
            view.element.before(this.mark);
    }

    #create(message) {
        const view = new MessageView(message, this.actions);
        this.views.set(message, view);
        this.by_element.set(view.element, view);
        this.near.observe(view.element);
        return view;
    }

    #counted() {
        byId("welcome").hidden = this.views.size > 0;
        byId("main").classList.toggle("is-empty", this.views.size === 0);
    }

    append(message) {
        const view = this.#create(message);
        view.render();
        this.list.append(view.element);
        this.#counted();
        this.follow();
    }

    update(message) {
        this.dirty = message;
        this.draw();
    }

    #draw() {
        const view = this.dirty && this.views.get(this.dirty);
        if (!view || this.dirty.state !== "streaming")
            return;
        const begin = performance.now();
        if (begin < this.not_before)
            return this.draw();
        view.update();
        const took = performance.now() - begin;
        this.not_before = took > SLOW ? begin + 4 * took : 0;
        this.dirty = null;
    }

    finish(message) {
        this.views.get(message)?.finish();
        const { state, content, error } = message;
        const said = content.length > MAX_SPOKEN ? `${content.slice(0, MAX_SPOKEN)} …` : content;
        byId("live").textContent = state === "done" ? `Answer: ${said}` : `${error ?? `Answer ${state}.`} ${said}`;
    }

    truncate(index) {
        for (const [message, view] of [...this.views].slice(index)) {
            this.near.unobserve(view.element);
            view.element.remove();
            this.views.delete(message);
        }
        this.#counted();
    }

    #approach(entries) {
        for (const { target, isIntersecting } of entries) {
            if (!isIntersecting)
                continue;
            this.by_element.get(target)?.render();
            this.near.unobserve(target);
        }
    }

    // ---- Scrolling ----

    follow() {
        this.is_following = true;
        this.#follow();
    }

    #follow() {
        if (this.is_following)
            this.scroller.scrollTop = this.scroller.scrollHeight;
        this.#marks();
    }

    #scrolled() {
        const { scrollTop, scrollHeight, clientHeight } = this.scroller;
        // Growing text also moves the end away: only scrolling up means that the user wants to stay.
        if (scrollHeight - scrollTop - clientHeight < NEAR_END)
            this.is_following = true;
        else if (scrollTop < this.last_top)
            this.is_following = false;
        this.last_top = scrollTop;
        this.#marks();
    }

    #marks() {
        byId("latest").hidden = this.is_following;
        byId("top").classList.toggle("is-scrolled", this.scroller.scrollTop > 4);
    }

    // ---- Editing ----

    // Replaces a message by a text box; done(text) gets its final text, or null.
    edit(message, done) {
        const view = this.views.get(message);
        const area = element("textarea", { "aria-label": "Edit the message" });
        area.value = message.content;
        const grow = () => {
            area.style.height = "auto";
            area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight / 2)}px`;
        };
        const end = (text) => {
            view.element.classList.remove("is-edited");
            view.is_rendered = false;
            view.render();
            done(text);
        };
        const form = element("form", { class: "edit",
            on: { submit: (event) => (event.preventDefault(), end(area.value)) } }, area,
            element("div", { class: "row" },
                element("button", { type: "button", on: { click: () => end(null) } }, "Cancel"),
                element("button", { type: "submit", class: "primary" }, "Ask again")));
        area.addEventListener("input", grow);
        area.addEventListener("keydown", (event) => {
            if (event.key === "Escape") {
                event.stopPropagation();
                end(null);
            } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
                event.preventDefault();
                end(area.value);
            }
        });
        view.element.classList.add("is-edited");
        view.body.replaceChildren(form);
        view.foot.replaceChildren();
        grow();
        area.focus();
        area.setSelectionRange(area.value.length, area.value.length);
    }
}
