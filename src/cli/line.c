/* Reads messages, with libedit if possible. */
#include "cli/line.h"

#include "cli/cli.h"
#include "cli/history.h"
#include "cli/signals.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <errno.h>
#include <langinfo.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#ifdef QN_HAVE_LIBEDIT
#include <histedit.h>
#endif

/* Bracketed paste: in this mode a terminal sends these marks around pasted text (xterm, "Bracketed Paste Mode"). */
#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"
#define PASTE_BEGIN "\033[200~"
#define PASTE_END "\033[201~"

/* If a message begins with a text, the editor first reads this key, which no terminal sends. */
#define INITIAL_KEY "\033[9999~"

enum { MARK_BYTES = sizeof PASTE_BEGIN - 1, MAX_PASTE = 16 << 20 };

/* A growing text. */
struct text {
    char *bytes;
    size_t length, capacity;
};

struct qn_line {
    const char *prompt;
    bool terminal; /* standard input is a terminal */
    bool can_paste;
    bool has_begun; /* a line was read; the first may begin with a byte order mark */
#ifdef QN_HAVE_LIBEDIT
    EditLine *edit; /* NULL: lines are read without editing */
    History *history;
    struct text pasted;  /* the last paste, while libedit reads it */
    const char *initial; /* text to edit, until it was inserted; or NULL */
    const char *keys;    /* bytes to read before standard input, or "" */
#endif
};

/* Bracketed paste is on only while a message is read: programs that run later may not support it. */
static void set_paste(const qn_line *line, bool on)
{
    if (!line->can_paste)
        return;
    fputs(on ? PASTE_ON : PASTE_OFF, stdout);
    fflush(stdout);
}

static bool append(struct text *text, const char *bytes, size_t length)
{
    if (length > MAX_PASTE - text->length ||
        qn_realloc_array(&text->bytes, &text->capacity, text->length + length + 1, 1, "message"))
        return false;
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = 0;
    return true;
}

/* ---- With libedit ---- */

#ifdef QN_HAVE_LIBEDIT
static char *prompt_of(EditLine *edit)
{
    qn_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    return (char *)(uintptr_t)line->prompt; /* libedit does not write into it */
}

/* Reads the next character of standard input. libedit's own reader would miss a signal that arrives just before it
 * reads. */
static int read_character(EditLine *edit, wchar_t *character)
{
    qn_line *line = NULL;
    mbstate_t state = { 0 };
    el_get(edit, EL_CLIENTDATA, &line);
    if (*line->keys) {
        *character = (wchar_t)*line->keys++;
        return 1;
    }
    for (;;) {
        char byte;
        ssize_t got = -1;
        if (qn_signals_wait_for_input(STDIN_FILENO))
            got = read(STDIN_FILENO, &byte, 1);
        if (got <= 0) {
            *character = 0;
            return (int)got;
        }
        const size_t n = mbrtowc(character, &byte, 1, &state);
        if (n == (size_t)-1)
            state = (mbstate_t){ 0 }; /* not the beginning of a character: skipped */
        else if (n != (size_t)-2)
            return 1;
    }
}

/* A pasted newline, which terminals may send as "\r", becomes part of the line instead of ending it. Other control
 * characters except tab are dropped: they would be commands to the editor, or to a terminal that shows them. */
static void add_pasted(struct text *pasted, wchar_t character)
{
    char bytes[MB_LEN_MAX];
    mbstate_t state = { 0 };
    if (character == L'\r')
        character = L'\n';
    if ((character < 0x20 && character != L'\n' && character != L'\t') || character == 0x7f)
        return;
    const size_t n = wcrtomb(bytes, character, &state);
    if (n != (size_t)-1)
        append(pasted, bytes, n);
}

/* Bound to PASTE_BEGIN: reads up to PASTE_END and inserts the text. */
static unsigned char insert_paste(EditLine *edit, int key)
{
    (void)key;
    qn_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    line->pasted.length = 0;
    for (size_t n_held = 0; n_held < MARK_BYTES;) { /* bytes of the end mark seen so far */
        wchar_t character;
        if (el_wgetc(edit, &character) != 1)
            return CC_EOF;
        if (character == (wchar_t)PASTE_END[n_held]) {
            n_held++;
            continue;
        }
        for (size_t i = 0; i < n_held; i++) /* not the mark after all */
            add_pasted(&line->pasted, (wchar_t)PASTE_END[i]);
        n_held = character == (wchar_t)PASTE_END[0];
        if (!n_held)
            add_pasted(&line->pasted, character);
    }
    while (line->pasted.length && line->pasted.bytes[line->pasted.length - 1] == '\n')
        line->pasted.bytes[--line->pasted.length] = 0; /* a final pasted newline does not send the message */
    if (!line->pasted.length)
        return CC_NORM;
    return el_insertstr(edit, line->pasted.bytes) == 0 ? CC_REFRESH : CC_ERROR;
}

/* Bound to INITIAL_KEY: inserts the text to edit. */
static unsigned char insert_initial(EditLine *edit, int key)
{
    (void)key;
    qn_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    const char *text = line->initial;
    line->initial = NULL;
    if (!text || !*text)
        return CC_NORM;
    return el_insertstr(edit, text) == 0 ? CC_REFRESH : CC_ERROR;
}

static void remember(void *history_of_line, const char *text)
{
    HistEvent event;
    history(history_of_line, &event, H_ENTER, text);
}

static void open_history(qn_line *line)
{
    HistEvent event;
    line->history = history_init();
    if (!line->history)
        return;
    history(line->history, &event, H_SETSIZE, QN_HISTORY_ENTRIES);
    qn_history_load(remember, line->history);
    el_set(line->edit, EL_HIST, history, line->history);
}

static void open_editor(qn_line *line, bool quiet)
{
    if (!line->terminal || !isatty(STDOUT_FILENO))
        return;
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0) {
        if (!quiet)
            qn_cli_error("note: there is no UTF-8 locale, not even C.UTF-8: lines are read without editing");
        return;
    }
    line->edit = el_init("quern", stdin, stdout, stderr);
    if (!line->edit)
        return; /* lines are read without editing */
    el_set(line->edit, EL_CLIENTDATA, line);
    el_set(line->edit, EL_PROMPT, prompt_of);
    el_set(line->edit, EL_EDITOR, "emacs");
    el_set(line->edit, EL_SIGNAL, 0); /* the program's own handler handles Ctrl-C */
    el_wset(line->edit, EL_GETCFN, read_character);
    el_wset(line->edit, EL_ADDFN, L"quern-paste", L"insert pasted text", insert_paste); /* el_set would leak copies of
                                                                                           the texts */
    el_set(line->edit, EL_BIND, PASTE_BEGIN, "quern-paste", NULL);
    el_wset(line->edit, EL_ADDFN, L"quern-initial", L"insert the text to edit", insert_initial);
    el_set(line->edit, EL_BIND, INITIAL_KEY, "quern-initial", NULL);
    open_history(line);
}

/* A message in memory of the caller. NULL: the end of input, or interrupted. */
static char *edited_line(qn_line *line, size_t *length)
{
    int n = 0;
    errno = 0;
    el_set(line->edit, EL_PREP_TERM, 1); /* before the prompt: until then a Ctrl-D is read as a zero byte */
    const char *text = el_gets(line->edit, &n);
    if (!text || n <= 0) {
        putchar('\n');
        return NULL;
    }
    if (*text != '\n' && line->history) {
        remember(line->history, text);
        qn_history_add(text, (size_t)n);
    }
    *length = (size_t)n;
    return strndup(text, (size_t)n);
}
#endif

/* ---- Without ---- */

static char *find_mark(const char *bytes, size_t length, const char *mark)
{
    return length ? memmem(bytes, length, mark, MARK_BYTES) : NULL;
}

/* A line of standard input with its newline. On a terminal a paste is read to its end, without its marks. */
static char *plain_line(qn_line *line, size_t *length)
{
    if (line->terminal) {
        fputs(line->prompt, stderr);
        fflush(stderr);
    }
    struct text text = { 0 };
    char *piece = NULL;
    size_t capacity = 0;
    bool pasting = false, ok = true;
    errno = 0;
    do {
        if (line->terminal && !qn_signals_wait_for_input(STDIN_FILENO))
            break;
        const ssize_t got = getline(&piece, &capacity, stdin);
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
        qn_cli_error("no memory for the message, or it is longer than %d bytes", MAX_PASTE);
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
    const char *type = getenv("TERM");
    (*out)->terminal = isatty(STDIN_FILENO);
#ifdef QN_HAVE_LIBEDIT
    (*out)->keys = "";
#endif
    (*out)->can_paste = (*out)->terminal && isatty(STDOUT_FILENO) && type && *type && strcmp(type, "dumb") != 0;
#ifdef QN_HAVE_LIBEDIT
    open_editor(*out, quiet);
#else
    (void)quiet;
#endif
    return true;
}

void qn_line_close(qn_line *line)
{
#ifdef QN_HAVE_LIBEDIT
    if (line->edit)
        el_end(line->edit);
    if (line->history)
        history_end(line->history);
    free(line->pasted.bytes);
#endif
    free(line);
}

static char *read_line(qn_line *line, size_t *length)
{
#ifdef QN_HAVE_LIBEDIT
    if (line->edit)
        return edited_line(line, length);
#endif
    return plain_line(line, length);
}

bool qn_line_can_edit(const qn_line *line)
{
#ifdef QN_HAVE_LIBEDIT
    return line->edit != NULL;
#else
    (void)line;
    return false;
#endif
}

static void set_initial(qn_line *line, const char *initial)
{
#ifdef QN_HAVE_LIBEDIT
    line->initial = initial;
    line->keys = initial ? INITIAL_KEY : "";
#else
    (void)line;
    (void)initial;
#endif
}

/* A line without its end. */
static qn_line_result read_part(qn_line *line, char **text, size_t *length)
{
    set_paste(line, true);
    char *bytes = read_line(line, length);
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
    set_initial(line, initial);
    for (;;) {
        char *part;
        size_t n;
        const qn_line_result got = read_part(line, &part, &n);
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
            qn_cli_error("no memory for the message, or it is longer than %d bytes", MAX_PASTE);
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
