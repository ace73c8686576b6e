/* What is typed and what is answered on a terminal: any bytes are keys for the line editor, and text for the display of
 * answers, on a terminal of any size that changes. The edited text stays UTF-8 without control characters other than
 * newline and tab; what is printed moves the cursor, and holds nothing else that controls a terminal.
 *
 * An input is: columns, rows, how many bytes make a piece, then the bytes. A piece of answers begins with the columns
 * of the terminal. */
#include "fuzz.h"

#include "base/printable.h"
#include "base/utf8.h"
#include "cli/editor.h"
#include "cli/wrap.h"

static const char *const WORDS[] = { "/save ", "/load ", "/lo\xcc\x80", "folder/", "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa" };

static void complete(void *unused, const char *text, size_t length, qn_completions *out)
{
    (void)unused;
    out->from = length ? length - 1 : 0;
    while (out->from && ((unsigned char)text[out->from] & 0xc0) == 0x80)
        out->from--;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        if (!length || text[out->from] == WORDS[i][0])
            qn_completions_add(out, WORDS[i], strlen(WORDS[i]), i % 2 ? " " : "");
}

static void require_text(const char *text, size_t length)
{
    require(text[length] == 0, "the text ends with a zero byte");
    for (size_t i = 0, n; i < length; i += n) {
        uint32_t code;
        require(qn_utf8_next(text + i, length - i, &n, &code) == QN_UTF8_COMPLETE, "the text is UTF-8");
        require(!qn_is_control(code) || code == '\n' || code == '\t', "the text has no control characters");
    }
}

/* Whether the sequence after ESC [ is one of those that quern prints; its length. */
static size_t known_sequence(const char *text)
{
    size_t n = 0;
    while (text[n] >= '0' && text[n] <= '9')
        n++;
    return text[n] && strchr("ABCDGHJKn", text[n]) ? n + 1 : 0;
}

static void require_harmless(const char *text, size_t length)
{
    for (size_t i = 0, n; i < length; i += n) {
        const unsigned char c = (unsigned char)text[i];
        n = qn_harmless(text + i, length - i);
        if (!n && c == 0x1b) {
            n = text[i + 1] == '[' ? known_sequence(text + i + 2) : 0;
            require(n, "only known sequences are printed");
            n += 2;
        } else if (!n) {
            require(c == '\n' || c == '\r' || c == '\t', "no other control characters are printed");
            n = 1;
        }
    }
}

static void edit(struct input in, size_t columns, size_t rows, size_t piece)
{
    char *printed = NULL;
    size_t n_printed = 0, length;
    FILE *to = open_memstream(&printed, &n_printed);
    require(to, "memory");
    qn_editor *editor = qn_editor_open(to, "", "");
    require(editor, "memory");
    qn_editor_completer(editor, complete, NULL);
    qn_editor_remember(editor, "an entry");
    qn_editor_remember(editor, "two\nlines");
    qn_editor_begin(editor, "> ", "a text to edit", columns, rows);
    while (in.left) {
        size_t used;
        const size_t n = in.left < piece ? in.left : piece;
        const qn_editor_result result = qn_editor_feed(editor, (const char *)in.at, n, &used);
        require(used <= n && (used || !n), "bytes are taken");
        in.at += used;
        in.left -= used;
        const char *text = qn_editor_text(editor, &length);
        require_text(text, length);
        if (result != QN_EDITOR_MORE) {
            qn_editor_remember(editor, text);
            qn_editor_leave(editor);
            columns = columns % 90 + 1;
            qn_editor_begin(editor, ". ", NULL, columns, rows);
        } else if (used % 7 == 3) {
            qn_editor_redraw(editor, used % 2, columns = columns % 70 + 1, rows = rows % 9 + 1);
        }
    }
    qn_editor_close(editor);
    require(fclose(to) == 0, "memory");
    require_harmless(printed, n_printed);
    free(printed);
}

static void answer(struct input in, size_t piece)
{
    char *printed = NULL;
    size_t n_printed = 0;
    FILE *to = open_memstream(&printed, &n_printed);
    qn_wrap wrap;
    require(to, "memory");
    qn_wrap_begin(&wrap, to);
    while (in.left) {
        const uint8_t *bytes;
        const size_t columns = 1 + take_byte(&in), n = take_bytes(&in, piece, &bytes);
        qn_wrap_text(&wrap, (const char *)bytes, n, columns);
        require(wrap.column <= columns + 2, "the cursor is on the terminal");
    }
    require(fclose(to) == 0, "memory");
    require_harmless(printed, n_printed);
    free(printed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    const size_t columns = 1 + take_byte(&in), rows = 1 + take_byte(&in) % 60, piece = 1 + take_byte(&in);
    edit(in, columns, rows, piece);
    answer(in, piece);
    return 0;
}
