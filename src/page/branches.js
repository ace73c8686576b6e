// The messages of a conversation as a tree: each has `parent`, the number n of the message before it, -1 if it is the
// first. An edited message, or another answer, is one more child of the same parent. What is shown is a path from the
// beginning to a leaf.

// Messages of older pages, and broken ones, follow the message before them. all: in ascending order of n.
export function link(all) {
    const known = new Set([-1]);
    let last = -1;
    for (const message of all) {
        if (!known.has(message.parent))
            message.parent = last;
        known.add(message.n);
        last = message.n;
    }
}

// The latest messages that follow the one of number `from`.
function latest(all, from) {
    const children = new Map(), found = [];
    for (const message of all)
        children.set(message.parent, message);
    for (let next = children.get(from); next; next = children.get(next.n))
        found.push(next);
    return found;
}

// The path through the message of number n, and on along the latest messages. Undefined or unknown: the latest path.
export function pathThrough(all, n) {
    const by_n = new Map(all.map((message) => [message.n, message]));
    if (!by_n.has(n))
        n = all.at(-1)?.n;
    const before = [];
    for (let message = by_n.get(n); message; message = by_n.get(message.parent))
        before.push(message);
    return before.length ? [...before.reverse(), ...latest(all, n)] : [];
}

// The messages that stand at the same place of their conversation, in the order in which they came.
export const versionsOf = (all, message) => all.filter(({ parent }) => parent === message.parent);
