// Small helpers for elements. Text always becomes text nodes: no file of the page parses HTML.

// element("button", { class: "round", "aria-label": "Send", on: { click } }, child, "text") - children may be null.
export function element(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (name === "on") {
            for (const [event, listener] of Object.entries(value))
                node.addEventListener(event, listener);
        } else if (value === true) {
            node.setAttribute(name, "");
        } else if (value !== false && value !== null && value !== undefined) {
            node.setAttribute(name, value);
        }
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
}

export const byId = (id) => document.getElementById(id);

export function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    use.setAttribute("href", `#i-${name}`);
    svg.append(use);
    return svg;
}

// A button with only an icon; its label is also its tooltip.
export function iconButton(name, label, click) {
    return element("button", { type: "button", class: "round", "aria-label": label, title: label, on: { click } },
        icon(name));
}

// Where a note appears: "side" is below the list of conversations, "bottom" above the message box, an element
// has its own. A dialog covers the others, so it takes them while it is open.
function placeOf(at) {
    const dialog = document.querySelector("dialog[open]"), is_named = typeof at === "string";
    if (dialog && (is_named || !dialog.contains(at)))
        return dialog.querySelector(".toasts") ?? dialog;
    return is_named ? byId(at === "side" && !byId("sidebar").inert ? "side-toasts" : "bottom-toasts") : at;
}

// A note that disappears, next to what it is about and above nothing; action: { label, run }.
export function toast(text, { at = "bottom", action } = {}) {
    const node = element("div", { class: "toast", role: "status" }, element("span", {}, text));
    const remove = () => node.remove();
    if (action)
        node.append(element("button", { type: "button", on: { click: () => (remove(), action.run()) } }, action.label));
    placeOf(at).append(node);
    setTimeout(remove, action ? 10000 : 5000);
}

// The Clipboard API exists only on https and on this machine; elsewhere the old command still copies.
export async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        const area = element("textarea", { class: "unseen", "aria-hidden": "true" });
        const focused = document.activeElement;
        area.value = text;
        document.body.append(area);
        area.select();
        const copied = document.execCommand("copy");
        area.remove();
        focused?.focus();
        return copied;
    }
}

export function copyButton(label, text) {
    const button = iconButton("copy", label, async () => {
        if (!await copyText(text()))
            return toast("The browser does not let this page copy.", { at: button.closest(".foot, .code") });
        button.replaceChildren(icon("done"));
        setTimeout(() => button.replaceChildren(icon("copy")), 1500);
    });
    return button;
}

// Offers a file for download.
export function download(name, type, text) {
    const url = URL.createObjectURL(new Blob([text], { type }));
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// crypto.randomUUID is missing on plain http.
export function randomId() {
    return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// At most one call per frame.
export function perFrame(run) {
    let frame = 0;
    return () => {
        frame ||= requestAnimationFrame(() => {
            frame = 0;
            run();
        });
    };
}

const storage = (kind) => ({
    get(name) {
        try {
            return kind().getItem(name);
        } catch {
            return null; // storage may be forbidden
        }
    },
    set(name, value) {
        try {
            if (value === null)
                kind().removeItem(name);
            else
                kind().setItem(name, value);
            return true;
        } catch {
            return false; // or full
        }
    },
});
export const local = storage(() => localStorage);
export const session = storage(() => sessionStorage);
