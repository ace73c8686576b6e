/* Reads messages, with the editor if possible. */
#include "cli/line.h"

#include "base/program.h"
#include "base/strings.h"
#include "cli/cli.h"
#include "cli/history.h"
#include "cli/signals.h"
#include "cli/terminal.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Marks around pasted text (xterm, "Bracketed Paste Mode"). */
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"

enum { MARK_BYTES = sizeof PASTE_BEGIN - 1, READ_BYTES = 4096 };

/* A growing text. */
struct text {
    char *bytes;
    size_t length, capacity;
};

struct qn_line {
    const char *prompt;
    bool terminal; /* standard input is a terminal */
    bool can_paste;
    bool has_begun;    /* a line was read; the first may begin with a byte order mark */
    qn_editor *editor; /* NULL: lines are read without editing */
    char read[READ_BYTES];
    size_t n_read, n_used; /* bytes read for the editor, and those that it has taken */
};

/* Turns bracketed paste on or off. It is on only while a message is read: programs that run later may not support
 * it. */
static void set_paste(const qn_line *line, bool on)
{
    if (line->can_paste)
        qn_terminal_paste(on);
}

static bool append(struct text *text, const char *bytes, size_t length)
{
    if (length > QN_EDIT_MAX - text->length ||
        qn_realloc_array(&text->bytes, &text->capacity, text->length + length + 1, 1, "message"))
        return false;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return true;
}

/* ---- With the editor ---- */

static void remember(void *editor, const char *text)
{
    qn_editor_remember(editor, text);
}

static void open_editor(qn_line *line, bool quiet)
{
    if (!line->terminal || !qn_terminal_moves(stdout))
        return;
    if (!qn_is_utf8_terminal()) {
        if (!quiet)
            qn_cli_error("note: there is no UTF-8 locale, not even C.UTF-8: lines are read without editing");
        return;
    }
    line->editor =
        qn_editor_open(stdout, qn_terminal_style(stdout, QN_STYLE_PROMPT), qn_terminal_style(stdout, QN_STYLE_MESSAGE));
    if (line->editor)
        qn_history_load(remember, line->editor);
}

/* Reads what was typed. A paste is read in large pieces; otherwise what follows the message is left to the program that
 * reads after this one. False: the end of input, or it was interrupted. */
static bool read_keys(qn_line *line)
{
    for (;;) {
        line->n_used = 0;
        line->n_read = qn_terminal_take_kept(line->read, READ_BYTES);
        if (line->n_read)
            return true;
        const qn_signals_wake wake = qn_signals_wait_for_input(STDIN_FILENO);
        if (wake == QN_WAKE_STOP)
            return false;
        if (wake != QN_WAKE_INPUT) {
            size_t columns, rows;
            qn_terminal_size(stdout, &columns, &rows);
            qn_editor_redraw(line->editor, wake == QN_WAKE_RETURN, columns, rows);
            continue;
        }
        const ptrdiff_t got = qn_terminal_read(line->read, qn_editor_is_pasting(line->editor) ? READ_BYTES : 1);
        if (got < 0 && errno == EINTR)
            continue;
        line->n_read = got > 0 ? (size_t)got : 0;
        return got > 0;
    }
}

/* Reads a message with editing; free() it. NULL: the end of input, or interrupted. */
static char *edited_line(qn_line *line, const char *initial, size_t *length)
{
    qn_editor_result result = QN_EDITOR_MORE;
    size_t columns, rows;
    qn_terminal_set(QN_TERMINAL_KEYS); /* before the prompt: a Ctrl-D until then would be another */
    (void)qn_signals_drop_redraw();
    qn_terminal_size(stdout, &columns, &rows);
    qn_editor_begin(line->editor, line->prompt, initial, columns, rows);
    while (result == QN_EDITOR_MORE && (line->n_used < line->n_read || read_keys(line))) {
        size_t used;
        result = qn_editor_feed(line->editor, line->read + line->n_used, line->n_read - line->n_used, &used);
        line->n_used += used;
    }
    if (qn_signals_stop_requested())
        qn_terminal_drop_input(); /* with the text that Ctrl-C drops, what of it is not yet read */
    qn_editor_leave(line->editor);
    if (result != QN_EDITOR_LINE)
        return NULL;
    const char *text = qn_editor_text(line->editor, length);
    if (*length) {
        qn_editor_remember(line->editor, text);
        qn_history_add(text, *length);
    }
    return qn_strndup(text, *length);
}

/* ---- Without ---- */

static char *find_mark(const char *bytes, size_t length, const char *mark)
{
    return length ? qn_memmem(bytes, length, mark, MARK_BYTES) : NULL;
}

static bool wait_for_line(void)
{
    qn_signals_wake wake;
    do
        wake = qn_signals_wait_for_input(STDIN_FILENO);
    while (wake == QN_WAKE_RESIZE || wake == QN_WAKE_RETURN);
    return wake == QN_WAKE_INPUT;
}

/* Reads a line of standard input with its newline. On a terminal a paste is read to its end, without its marks. */
static char *plain_line(qn_line *line, size_t *length)
{
    if (line->terminal) {
        qn_terminal_set(QN_TERMINAL_FOUND);
        fputs(line->prompt, stderr);
        fflush(stderr);
    }
    struct text text = { 0 };
    char *piece = NULL;
    size_t capacity = 0;
    bool pasting = false, ok = true;
    errno = 0;
    do {
        if (line->terminal && !wait_for_line())
            break;
        const ssize_t got = qn_getline(&piece, &capacity, stdin);
        if (got < 0)
            break;
        const size_t from = text.length, mark_bytes = line->has_begun ? 0 : qn_utf8_mark(piece, (size_t)got);
        line->has_begun = true;
        ok = append(&text, piece + mark_bytes, (size_t)got - mark_bytes);
        for (char *mark;
             ok && line->terminal &&
             (mark = find_mark(text.bytes + from, text.length - from, pasting ? PASTE_END : PASTE_BEGIN));) {
            const size_t after = text.length - (size_t)(mark - text.bytes) - MARK_BYTES;
            memmove(mark, mark + MARK_BYTES, after + 1);
            text.length -= MARK_BYTES;
            pasting = !pasting;
        }
    } while (ok && pasting);
    free(piece);
    if (!ok)
        qn_cli_error("no memory for the message, or it is longer than %d bytes", QN_EDIT_MAX);
    if (!ok || !text.length) {
        free(text.bytes);
        return NULL;
    }
    *length = text.length;
    return text.bytes;
}

/* ---- Either ---- */

bool qn_line_open(qn_line **out, bool quiet)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        qn_cli_error("no memory for the line editor");
        return false;
    }
    (*out)->terminal = qn_is_terminal(STDIN_FILENO);
    (*out)->can_paste = (*out)->terminal && qn_terminal_moves(stdout);
    if ((*out)->terminal)
        qn_signals_watch_terminal();
    open_editor(*out, quiet);
    return true;
}

void qn_line_close(qn_line *line)
{
    qn_terminal_set(QN_TERMINAL_FOUND);
    qn_editor_close(line->editor);
    free(line);
}

void qn_line_completer(qn_line *line, qn_complete_fn *complete, void *user)
{
    if (line->editor)
        qn_editor_completer(line->editor, complete, user);
}

void qn_line_quiet(qn_line *line)
{
    if (line->terminal)
        qn_terminal_set(line->editor ? QN_TERMINAL_KEYS : QN_TERMINAL_QUIET);
}

bool qn_line_can_edit(const qn_line *line)
{
    return line->editor != NULL;
}

/* Reads a line without its end. */
static qn_line_result read_part(qn_line *line, const char *initial, char **text, size_t *length)
{
    set_paste(line, true);
    char *bytes = line->editor ? edited_line(line, initial, length) : plain_line(line, length);
    set_paste(line, false);
    if (qn_signals_stop_requested()) {
        free(bytes);
        clearerr(stdin);
        return QN_LINE_INTERRUPTED;
    }
    if (!bytes && ferror(stdin)) {
        qn_cli_error("standard input: %s", strerror(errno));
        return QN_LINE_FAILED;
    }
    if (!bytes)
        return QN_LINE_END;
    if (*length && bytes[*length - 1] == '\n')
        (*length)--;
    if (*length && bytes[*length - 1] == '\r')
        (*length)--;
    bytes[*length] = 0;
    *text = bytes;
    return QN_LINE_READ;
}

qn_line_result qn_line_read(qn_line *line, const char *prompt, const char *initial, char **text, size_t *length)
{
    struct text message = { 0 };
    line->prompt = prompt;
    for (;;) {
        char *part;
        size_t n;
        const qn_line_result got = read_part(line, initial, &part, &n);
        initial = NULL;
        if (got == QN_LINE_END && message.length) /* after a line that was to be continued */
            break;
        if (got != QN_LINE_READ) {
            free(message.bytes);
            return got;
        }
        const bool continues = n && part[n - 1] == '\\';
        if (continues)
            part[n - 1] = '\n';
        const bool ok = append(&message, part, n);
        free(part);
        if (!ok) {
            free(message.bytes);
            qn_cli_error("no memory for the message, or it is longer than %d bytes", QN_EDIT_MAX);
            return QN_LINE_FAILED;
        }
        if (!continues)
            break;
        line->prompt = ". ";
    }
    *text = message.bytes;
    *length = message.length;
    return QN_LINE_READ;
}
