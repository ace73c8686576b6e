// Requests to the server of this page. Paths are relative: a proxy may serve quern below a path.
import { session } from "./dom.js";
import { events } from "./sse.js";

// Why a request has no answer. kind: "gone" (no connection, or the server is stopping), "key" (401), "loading" (503),
// "busy" (429), "cut" (the stream ended early), "failed".
export class ApiError extends Error {
    constructor(kind, message, status = 0, code = null) {
        super(message);
        Object.assign(this, { kind, status, code, n_tokens: undefined }); // n_tokens: of a prompt that is too long
    }
}

// The key is forgotten when the tab is closed.
export const getKey = () => session.get("quern.key") ?? "";
export const setKey = (key) => session.set("quern.key", key || null);

const number = (value) => (Number.isFinite(value) && value > 0 ? value : undefined);

const KINDS = { 401: "key", 403: "failed", 429: "busy", 503: "loading" };

async function refusal(response) {
    let error = {};
    try {
        error = (await response.json()).error ?? {};
    } catch { /* perhaps not a quern server */ }
    const message = typeof error.message === "string" ? error.message.slice(0, 1000)
        : `The server answered with status ${response.status}.`;
    const code = typeof error.code === "string" ? error.code : null;
    const result = new ApiError(code === "stopping" ? "gone" : KINDS[response.status] ?? "failed", message,
        response.status, code);
    result.n_tokens = number(error.n_prompt_tokens);
    return result;
}

async function request(path, { body, signal } = {}) {
    const headers = {};
    const key = getKey();
    if (key)
        headers.Authorization = `Bearer ${key}`;
    if (body)
        headers["Content-Type"] = "application/json";
    let response;
    try {
        response = await fetch(path, {
            method: body ? "POST" : "GET", body: body && JSON.stringify(body), headers, signal,
            cache: "no-store", credentials: "same-origin", redirect: "error",
        });
    } catch (error) {
        if (signal?.aborted && signal.reason?.name !== "TimeoutError")
            throw error;
        throw new ApiError("gone", "The server does not answer.");
    }
    if (!response.ok)
        throw await refusal(response);
    return response;
}

const getJson = async (path) => (await request(path, { signal: AbortSignal.timeout(10000) })).json();

export const health = () => request("health", { signal: AbortSignal.timeout(5000) });

const texts = (list) => (Array.isArray(list) ? list.filter((text) => typeof text === "string").slice(0, 16) : []);

// What a model says about its reasoning: null: it has none; undefined: it does not say.
function reasoningOf(value) {
    if (typeof value !== "object" || value === null)
        return value === null ? null : undefined;
    const { is_optional, efforts, default_effort } = value;
    return { is_optional: is_optional === true, efforts: texts(efforts),
        default_effort: typeof default_effort === "string" ? default_effort : undefined };
}

// Returns the models: { name, n_ctx, reasoning }. A server may know the last two only after a model was loaded.
export async function models() {
    const { data } = await getJson("v1/models");
    return (Array.isArray(data) ? data : []).filter((model) => typeof model?.id === "string").map((model) => ({
        name: model.id, n_ctx: number(model.meta?.n_ctx) ?? number(model.max_model_len),
        reasoning: reasoningOf(model.reasoning),
    }));
}

// Returns the number of tokens of a chat's prompt; undefined: the server does not count.
export async function countTokens(body, signal) {
    try {
        const response = await request("v1/chat/completions/input_tokens", { body, signal });
        return number((await response.json()).input_tokens);
    } catch (error) {
        if (signal?.aborted || error.kind === "gone" || error.kind === "key")
            throw error;
        return error.n_tokens;
    }
}

// Returns the server's defaults for requests: { n_ctx, params }, each possibly undefined, as not every server reports
// them.
export async function defaults() {
    try {
        const settings = (await getJson("props")).default_generation_settings ?? {};
        return { n_ctx: number(settings.n_ctx), params: settings.params ?? settings };
    } catch {
        return {};
    }
}

// Yields the chunks of a streamed chat. Throws ApiError, or the AbortError of the signal.
export async function* chat(body, signal) {
    const response = await request("v1/chat/completions", { body, signal });
    let has_ended = false;
    try {
        for await (const data of events(response.body)) {
            if (data === "[DONE]") {
                has_ended = true;
                break;
            }
            const chunk = JSON.parse(data);
            if (chunk.error)
                throw new ApiError("failed", String(chunk.error.message
                    ?? "The server could not complete the answer.").slice(0, 1000), 200, chunk.error.code ?? null);
            yield chunk;
        }
    } catch (error) {
        if (error instanceof ApiError || signal.aborted)
            throw error;
        if (error instanceof SyntaxError)
            throw new ApiError("failed", "The server sent invalid JSON.");
        throw new ApiError("cut", "The connection was lost.");
    }
    if (!has_ended)
        throw new ApiError("cut", "The connection was closed before the answer was complete.");
}
