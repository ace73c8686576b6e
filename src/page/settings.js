// Settings sent with requests. An empty field is not sent and shows the server's default, which then applies.
import { byId, element, iconButton, local } from "./dom.js";

const NAME = "quern.settings";

// name in requests, label, least, most, step
const NUMBERS = [
    ["temperature", "Temperature", 0, 2, 0.05],
    ["top_p", "Top-p", 0, 1, 0.01],
    ["top_k", "Top-k", 0, 1000, 1],
    ["min_p", "Min-p", 0, 0.99, 0.01],
    ["repetition_penalty", "Repetition penalty", 0.1, 2, 0.01],
    ["max_tokens", "Maximum tokens of an answer", 1, 1000000, 1],
    ["seed", "Seed", 0, 4294967295, 1],
];
const CHOICES = {
    thinking: ["default", "on", "off"],
    effort: ["default", "minimal", "low", "medium", "high", "xhigh", "max"],
};
const MAX_SYSTEM = 100000;

const is_valid = {
    number: ([, , least, most, step], value) => Number.isFinite(value) && value >= least && value <= most
        && (step < 1 || Number.isInteger(value)),
};

// Stored values may come from an older page or from the user: only valid ones are used.
function load() {
    let kept = {};
    try {
        kept = JSON.parse(local.get(NAME)) ?? {};
    } catch { /* none */ }
    const result = { system: typeof kept.system === "string" ? kept.system.slice(0, MAX_SYSTEM) : "" };
    for (const field of NUMBERS)
        if (is_valid.number(field, kept[field[0]]))
            result[field[0]] = kept[field[0]];
    for (const [name, values] of Object.entries(CHOICES))
        result[name] = values.includes(kept[name]) ? kept[name] : values[0];
    if (typeof kept.model === "string")
        result.model = kept.model;
    return result;
}

let values = load();
let on_change = () => {};
let server_defaults = {};

export const get = (name) => values[name];

export function set(name, value) {
    if (value === undefined)
        delete values[name];
    else
        values[name] = value;
    local.set(NAME, JSON.stringify(values));
    on_change();
}

export function onChange(listener) {
    on_change = listener;
}

export function setDefaults(params) {
    server_defaults = params ?? {};
}

// Selects the next value of "thinking", for a button.
export function nextThinking() {
    set("thinking", CHOICES.thinking[(CHOICES.thinking.indexOf(values.thinking) + 1) % CHOICES.thinking.length]);
}

function reasoningFields() {
    const result = {};
    if (values.thinking === "off")
        result.reasoning_effort = "none";
    else if (values.effort !== "default")
        result.reasoning_effort = values.effort;
    if (values.thinking === "on")
        result.chat_template_kwargs = { enable_thinking: true };
    return result;
}

// The fields of a request, and `system` and `n_ctx`. Thinking "off" is sent as effort "none", which works whatever the
// server's default is. model: what the server says of it, from api.models(), or undefined.
export function request(model) {
    const result = { n_ctx: model?.n_ctx };
    for (const [name] of NUMBERS)
        if (values[name] !== undefined)
            result[name] = values[name];
    if (model?.reasoning !== null)
        Object.assign(result, reasoningFields());
    if (values.model)
        result.model = values.model;
    if (values.system.trim())
        result.system = values.system.trim();
    return result;
}

function numberField(field) {
    const [name, label, min, max, step] = field;
    const fallback = server_defaults[name] ?? server_defaults[{ repetition_penalty: "repeat_penalty",
        max_tokens: "n_predict" }[name]];
    const input = element("input", {
        type: "number", id: `set-${name}`, min, max, step: "any", inputmode: "decimal",
        placeholder: Number.isFinite(fallback) && fallback >= 0 ? String(Math.round(fallback * 1000) / 1000)
            : "default",
    });
    input.value = values[name] ?? "";
    input.addEventListener("input", () => {
        const value = input.value === "" ? undefined : Number(input.value);
        const is_wrong = input.validity.badInput || (value !== undefined && !is_valid.number(field, value));
        input.setCustomValidity(is_wrong ? `Expected ${min} to ${max}` : "");
        input.setAttribute("aria-invalid", String(is_wrong));
        if (is_wrong)
            input.reportValidity();
        set(name, is_wrong ? undefined : value);
    });
    return element("label", { class: "field" }, element("span", {}, label), input);
}

// choices: pairs of a value and its name. What is selected is among them, wherever it comes from.
function choiceField(name, label, choices) {
    const known = choices.some(([value]) => value === values[name]) ? choices
        : [...choices, [values[name], `${values[name]}, not of this model`]];
    const select = element("select", { id: `set-${name}` },
        ...known.map(([value, text]) => element("option", { value }, text)));
    select.value = values[name];
    select.addEventListener("change", () => set(name, select.value));
    return element("label", { class: "field" }, element("span", {}, label), select);
}

const same = (list) => list.map((value) => [value, value]);

// The fields about the model's reasoning, as far as it has some.
function reasoningFieldsOf(model) {
    const { reasoning } = model ?? {};
    if (reasoning === null)
        return [element("p", {}, "This model answers without thinking first.")];
    const { efforts = [], default_effort, is_optional = true } = reasoning ?? {};
    const levels = (efforts.length ? efforts : CHOICES.effort.slice(1)).filter((value) => value !== "none");
    return [
        is_optional ? choiceField("thinking", "Thinking", [["default", "server default"], ...same(["on", "off"])])
            : element("p", {}, "This model always thinks before it answers."),
        choiceField("effort", "Effort",
            [["default", default_effort ? `default: ${default_effort}` : "server default"], ...same(levels)]),
    ];
}

function reset(fill) {
    const { model, system } = values;
    for (const [name] of NUMBERS)
        delete values[name];
    values = { ...values, model, system, thinking: "default", effort: "default" };
    set("effort", "default");
    fill();
}

// Fills the dialog and shows it. model: as of request(); data: { exportAll(), import(), changeKey() }
export function showDialog(model, data) {
    const dialog = byId("settings");
    const system = element("textarea", { id: "set-system", rows: "4", maxlength: MAX_SYSTEM,
        placeholder: "How the model should behave. Sent before every conversation." });
    const fill = () => {
        system.value = values.system;
        dialog.replaceChildren(
            element("header", {}, element("h2", { id: "settings-title" }, "Settings"),
                iconButton("close", "Close", () => dialog.close())),
            element("div", { class: "scroll" },
                element("section", {}, element("h3", {}, "Model"),
                    element("label", { class: "field tall" }, element("span", {}, "System prompt"), system),
                    ...reasoningFieldsOf(model)),
                element("section", {}, element("h3", {}, "Sampling"), ...NUMBERS.map(numberField),
                    element("button", { type: "button", class: "plain-button", on: { click: () => reset(fill) } },
                        "Back to the server's defaults")),
                element("section", {}, element("h3", {}, "Data"),
                    element("p", {},
                        "Conversations and settings are stored only in this browser, the key only in this tab."),
                    element("div", { class: "row" },
                        element("button", { type: "button", id: "export-all", on: { click: data.exportAll } },
                            "Export all"),
                        element("button", { type: "button", id: "import", on: { click: data.import } }, "Import"),
                        element("button", { type: "button", id: "change-key", on: { click: data.changeKey } },
                            "API key")),
                    element("div", { class: "toasts" })),
                element("section", { class: "keys" }, element("h3", {}, "Keys"),
                    element("dl", {}, ...[["Enter", "send"], ["Shift+Enter", "new line"], ["Esc", "stop the answer"],
                        ["↑", "edit the last message, in an empty box"],
                        ["Ctrl+Shift+O", "new conversation"],
                            ["Ctrl+K", "search"]].flatMap(([key, what]) =>
                            [element("dt", {}, element("kbd", {}, key)), element("dd", {}, what)]))),
                element("p", { class: "small" },
                    element("a", { href: "page/licences.txt", target: "_blank", rel: "noopener" },
                    "Licences of others' code"))));
    };
    system.addEventListener("input", () => set("system", system.value));
    fill();
    dialog.showModal();
}
