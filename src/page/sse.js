// Server-sent events from the body of an answer. EventSource would be shorter, but cannot send a POST.

const MAX_LINE = 16 * 1024 * 1024;

// Yields the data of each event, joined by newlines. Comments and other fields are skipped. An event without a blank
// line after it is incomplete and dropped.
export async function* events(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", data = null;
    try {
        for (;;) {
            const { value, done } = await reader.read();
            if (done)
                return;
            // do not search a long line again for each part
            const may_end = rest.endsWith("\r") || /[\r\n]/.test(value);
            rest += value;
            // A carriage return at the end may be half of a line end.
            const lines = may_end ? rest.split(/\r\n|\n|\r(?=[^])/) : [rest];
            rest = lines.pop();
            if (rest.length > MAX_LINE)
                throw new Error("the server sent a line that is too long");
            for (const line of lines) {
                if (line === "") {
                    if (data !== null)
                        yield data;
                    data = null;
                } else if (line.startsWith("data:")) {
                    const text = line.slice(line[5] === " " ? 6 : 5);
                    data = data === null ? text : `${data}\n${text}`;
                }
            }
        }
    } finally {
        reader.cancel().catch(() => {});
    }
}
