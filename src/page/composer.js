// The message box, and its attached files.
import { byId, element, icon, iconButton, toast } from "./dom.js";
import { MAX_FILES, readFile } from "./files.js";

export class Composer {
    // on: { send(text, files), stop(), edit_last() }
    constructor(on) {
        this.on = on;
        this.input = byId("input");
        this.files = [];
        this.input.addEventListener("input", () => this.#changed());
        this.input.addEventListener("keydown", (event) => this.#key(event));
        this.input.addEventListener("paste", (event) => {
            if (event.clipboardData?.files.length) {
                event.preventDefault();
                this.attach(event.clipboardData.files);
            }
        });
        byId("composer").addEventListener("submit", (event) => {
            event.preventDefault();
            this.#send();
        });
        byId("stop").addEventListener("click", () => on.stop());
        byId("attach").addEventListener("click", () => byId("files").click());
        byId("files").addEventListener("change", ({ target }) => {
            this.attach(target.files);
            target.value = "";
        });
        this.#drops();
        this.set_busy(false);
    }

    #key(event) {
        // An Enter that ends the composition of a character does not send.
        if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229) {
            event.preventDefault();
            this.#send();
        } else if (event.key === "ArrowUp" && !this.input.value && !event.isComposing) {
            event.preventDefault();
            this.on.edit_last();
        }
    }

    #send() {
        const text = this.input.value.trim();
        if (this.is_busy || (!text && !this.files.length))
            return;
        const { files } = this;
        this.clear();
        this.on.send(text, files);
    }

    clear() {
        this.files = [];
        this.set_text("");
        this.#show();
    }

    set_text(text) {
        this.input.value = text;
        this.#changed();
    }

    focus() {
        this.input.focus({ preventScroll: true });
    }

    #changed() {
        this.input.style.height = "auto";
        this.input.style.height = `${this.input.scrollHeight}px`;
        byId("send").disabled = !this.input.value.trim() && !this.files.length;
    }

    set_busy(is_busy) {
        const had_focus = [byId("send"), byId("stop")].includes(document.activeElement);
        this.is_busy = is_busy;
        byId("send").hidden = is_busy;
        byId("stop").hidden = !is_busy;
        if (had_focus)
            this.focus();
        this.#changed();
    }

    // ---- Files ----

    async attach(files) {
        for (const file of files) {
            if (this.files.length >= MAX_FILES) {
                toast(`A message can have at most ${MAX_FILES} files.`);
                break;
            }
            try {
                this.files.push(await readFile(file));
            } catch (error) {
                toast(error.message);
            }
        }
        this.#show();
        this.focus();
    }

    #show() {
        const list = byId("attached");
        list.hidden = !this.files.length;
        list.replaceChildren(...this.files.map((file) =>
            element("li", {}, icon("file"), element("span", {}, file.name),
            iconButton("close", `Remove ${file.name}`, () => {
            this.files = this.files.filter((other) => other !== file);
            this.#show();
            this.focus();
        }))));
        this.#changed();
    }

    // A file dropped anywhere is attached; otherwise the browser would open it instead of the page.
    #drops() {
        let depth = 0;
        const has_files = (event) => event.dataTransfer?.types.includes("Files");
        const show = (is_shown) => byId("drop").hidden = !is_shown;
        addEventListener("dragenter", (event) => has_files(event) && show(++depth > 0));
        addEventListener("dragleave", (event) => has_files(event) && show(--depth > 0));
        addEventListener("dragover", (event) => has_files(event) && event.preventDefault());
        addEventListener("drop", (event) => {
            if (!has_files(event))
                return;
            event.preventDefault();
            show((depth = 0) > 0);
            this.attach(event.dataTransfer.files);
        });
    }
}
