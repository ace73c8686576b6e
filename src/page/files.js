// Files that are attached to a message as text.

export const MAX_FILES = 16;
export const MAX_FILE = 256 * 1024;
const MAX_NAME = 200;

// Names are shown and sent: no line breaks, and no characters that change the direction of text.
export const cleanName = (name) => name.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069`]/g,
    "").slice(0, MAX_NAME) || "file";

// Returns { name, text } of a File; throws an Error whose text is for the user.
export async function readFile(file) {
    const name = cleanName(file.name);
    if (file.size > MAX_FILE)
        throw new Error(`${name} has ${Math.ceil(file.size / 1024)} KB; `
            + `at most ${MAX_FILE / 1024} KB are attached as text.`);
    let text;
    try {
        text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
        throw new Error(`${name} is not text in UTF-8.`);
    }
    if (text.includes("\0"))
        throw new Error(`${name} is not text.`);
    return { name, text };
}

// The text for the model: each file in a fence that is longer than any in the file, then the message.
export function withFiles(content, files) {
    const parts = (files ?? []).map(({ name, text }) => {
        const longest = (text.match(/`{3,}/g) ?? []).reduce((most, run) => Math.max(most, run.length), 2);
        const fence = "`".repeat(longest + 1);
        return `File ${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
    });
    return [...parts, content].filter((part) => part).join("\n\n");
}
