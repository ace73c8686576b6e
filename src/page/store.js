// Conversations in IndexedDB. Each message is a record, so that a growing answer is written without its conversation.
// Without storage (a private window may have none) everything is empty, and nothing is kept.

let database = null;
let complain = () => {};
let opened;
const is_open = new Promise((resolve) => opened = resolve); // earlier calls wait for it

const done = (request) => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
});

const completed = (transaction) => new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
});

// The key range of a conversation's messages.
const keysOf = (id) => IDBKeyRange.bound([id, 0], [id, Infinity]);

// Tabs report changes to each other.
const channel = "BroadcastChannel" in globalThis ? new BroadcastChannel("quern") : null;

// on_problem(text) is called when something cannot be stored; on_change(id) when another tab changed a conversation.
export async function open(on_problem, on_change) {
    complain = on_problem;
    channel?.addEventListener("message", ({ data }) => on_change(data));
    try {
        const request = indexedDB.open("quern", 1);
        request.onupgradeneeded = () => {
            request.result.createObjectStore("conversations", { keyPath: "id" });
            request.result.createObjectStore("messages", { keyPath: ["conversation", "n"] });
        };
        database = await done(request);
        database.onversionchange = () => database.close();
    } catch {
        complain("This browser does not let the page keep conversations: they end with this tab.");
    }
    opened();
}

// Runs change(conversations, messages) as one transaction. Other tabs are told of conversation `told`; null: of
// several; undefined: of none. Returns whether it was stored.
async function write(told, change) {
    await is_open;
    if (!database)
        return false;
    try {
        const transaction = database.transaction(["conversations", "messages"], "readwrite");
        change(transaction.objectStore("conversations"), transaction.objectStore("messages"));
        await completed(transaction);
        if (told !== undefined)
            channel?.postMessage(told);
        return true;
    } catch (error) {
        complain(error?.name === "QuotaExceededError"
            ? "The browser's storage is full: export and delete conversations."
            : "The browser could not keep the conversation.");
        return false;
    }
}

const read = (name) => database.transaction(name).objectStore(name);

// All conversations, the latest first.
export async function list() {
    await is_open;
    if (!database)
        return [];
    const all = await done(read("conversations").getAll());
    return all.sort((a, b) => b.updated - a.updated);
}

export async function get(id) {
    await is_open;
    return database ? done(read("conversations").get(id)) : undefined;
}

export async function messages(id) {
    await is_open;
    return database ? done(read("messages").getAll(keysOf(id))) : [];
}

export const putConversation = (conversation) =>
    write(conversation.id, (conversations) => conversations.put(conversation));

export const putMessage = (message) => write(undefined, (_, all) => all.put(message));

export const removeMessage = (id, n) => write(undefined, (_, all) => all.delete([id, n]));

export const remove = (id) => write(id, (conversations, all) => {
    conversations.delete(id);
    all.delete(keysOf(id));
});

// Stores all of [{ conversation, messages }], or nothing.
export const addAll = (entries) => write(null, (conversations, all) => {
    for (const entry of entries) {
        conversations.put(entry.conversation);
        for (const message of entry.messages)
            all.put(message);
    }
});

// The ids of conversations whose messages contain the text, ignoring case; null if is_current() became false meanwhile.
export async function search(text, is_current) {
    const found = new Set(), needle = text.toLowerCase();
    await is_open;
    if (!database)
        return found;
    return new Promise((resolve, reject) => {
        const request = read("messages").openCursor();
        request.onerror = () => reject(request.error);
        request.onsuccess = () => {
            const cursor = request.result;
            if (!cursor || !is_current())
                return resolve(cursor ? null : found);
            const { conversation, content } = cursor.value;
            if (!content.toLowerCase().includes(needle))
                return cursor.continue();
            found.add(conversation);
            cursor.continue([conversation, Infinity]); // to the next conversation
        };
    });
}
