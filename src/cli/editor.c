/* Keys of the line editor, and what they do. */
#include "cli/editor.h"

#include "cli/columns.h"
#include "cli/display.h"
#include "cli/history.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

#define CONTROL(letter) ((letter)&0x1f)
#define PASTE_END "\033[201~"

enum { ESCAPE = 0x1b, ERASE = 0x7f, MAX_SEQUENCE = 16, MAX_QUERY = 256, PASTE_END_BYTES = sizeof PASTE_END - 1 };

/* Part of a key's bytes that has come. */
enum part { NOTHING, AFTER_ESCAPE, IN_SEQUENCE, IN_SS3 };

struct qn_editor {
    qn_edit edit;
    qn_display display;
    qn_complete_fn *complete;
    void *user;
    const char *prompt;

    enum part part;
    char sequence[MAX_SEQUENCE]; /* of ESC [, with its last byte */
    size_t n_sequence;
    char character[4]; /* the beginning of one */
    size_t n_character;
    bool is_pasting;
    qn_edit pasted;
    size_t n_held; /* bytes of PASTE_END seen */

    char *entries[QN_HISTORY_ENTRIES]; /* a ring */
    size_t n_entries;                  /* added, also those that were dropped */
    size_t entry;                      /* shown; n_entries: none */
    char *own;                         /* the text before an entry was shown */

    bool is_searching;
    char query[MAX_QUERY];
    size_t n_query;
    size_t match; /* entry; n_entries: none */
    char search_prompt[MAX_QUERY + 32];
    bool was_tab; /* the last key was a Tab that completed nothing */
};

/* ---- Drawing ---- */

static void redraw(qn_editor *e)
{
    const char *entry = e->is_searching && e->match < e->n_entries ? e->entries[e->match % QN_HISTORY_ENTRIES] : NULL;
    e->display.prompt = e->is_searching ? e->search_prompt : e->prompt;
    if (e->is_searching)
        qn_display_draw(&e->display, entry ? entry : "", entry ? strlen(entry) : 0, 0);
    else
        qn_display_draw(&e->display, e->edit.bytes ? e->edit.bytes : "", e->edit.length, e->edit.cursor);
}

/* ---- History ---- */

static size_t oldest_entry(const qn_editor *e)
{
    return e->n_entries > QN_HISTORY_ENTRIES ? e->n_entries - QN_HISTORY_ENTRIES : 0;
}

void qn_editor_remember(qn_editor *e, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return;
    char **slot = &e->entries[e->n_entries++ % QN_HISTORY_ENTRIES];
    free(*slot);
    *slot = copy;
    e->entry = e->n_entries;
}

static void show_entry(qn_editor *e, size_t entry)
{
    if (e->entry == e->n_entries) {
        free(e->own);
        e->own = strdup(e->edit.bytes ? e->edit.bytes : "");
    }
    const char *text = entry < e->n_entries ? e->entries[entry % QN_HISTORY_ENTRIES] : e->own;
    e->entry = entry;
    if (text)
        qn_edit_set(&e->edit, text, strlen(text));
}

/* Goes one line up in the text, else one entry back. */
static void go_up(qn_editor *e)
{
    const size_t begin = qn_edit_line_begin(&e->edit);
    if (begin > 0)
        e->edit.cursor = begin - 1;
    else if (e->entry > oldest_entry(e))
        show_entry(e, e->entry - 1);
}

static void go_down(qn_editor *e)
{
    const size_t end = qn_edit_line_end(&e->edit);
    if (end < e->edit.length) {
        e->edit.cursor = end + 1;
        e->edit.cursor = qn_edit_line_end(&e->edit);
    } else if (e->entry < e->n_entries) {
        show_entry(e, e->entry + 1);
    }
}

/* ---- Search ---- */

static void print_search(qn_editor *e)
{
    char query[MAX_QUERY + 1];
    memcpy(query, e->query, e->n_query);
    query[e->n_query] = 0;
    for (size_t i = 0; i < e->n_query; i++)
        if ((unsigned char)query[i] >= 0x80) /* prompts are ASCII */
            query[i] = '?';
    qn_print(e->search_prompt, sizeof e->search_prompt, "search '%s': ", query);
}

/* Finds the newest entry before `before` that has the query. */
static void search(qn_editor *e, size_t before)
{
    e->query[e->n_query] = 0;
    for (size_t i = before; i > oldest_entry(e); i--)
        if (e->n_query && strstr(e->entries[(i - 1) % QN_HISTORY_ENTRIES], e->query)) {
            e->match = i - 1;
            break;
        }
    print_search(e);
}

static void begin_search(qn_editor *e)
{
    e->is_searching = true;
    e->n_query = 0;
    e->match = e->n_entries;
    print_search(e);
}

static void end_search(qn_editor *e, bool takes)
{
    e->is_searching = false;
    if (takes && e->match < e->n_entries)
        show_entry(e, e->match);
}

/* Whether the search takes the key. All others end it. */
static bool take_search_key(qn_editor *e, unsigned char byte)
{
    if (byte == CONTROL('R')) {
        search(e, e->match);
    } else if (byte == CONTROL('G')) {
        end_search(e, false);
    } else if (byte == CONTROL('H') || byte == ERASE) {
        while (e->n_query && ((unsigned char)e->query[--e->n_query] & 0xc0) == 0x80)
            ;
        e->match = e->n_entries;
        search(e, e->n_entries);
    } else if (byte >= 0x20) {
        if (e->n_query + 1 < MAX_QUERY)
            e->query[e->n_query++] = (char)byte;
        search(e, e->match < e->n_entries ? e->match + 1 : e->n_entries);
    } else {
        end_search(e, true);
        return false;
    }
    return true;
}

/* ---- Completion ---- */

void qn_completions_add(qn_completions *c, const char *word, size_t n, const char *after)
{
    char *copy = NULL;
    c->is_cut |= c->n >= QN_COMPLETIONS_MAX;
    if (c->n >= QN_COMPLETIONS_MAX || qn_realloc_array(&c->at, &c->capacity, c->n + 1, sizeof *c->at, "completions") ||
        asprintf(&copy, "%.*s%s", (int)n, word, after) < 0)
        return;
    c->at[c->n++] = copy;
}

static int compare_words(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Returns the number of bytes that all words begin with, up to the boundary of a character. */
static size_t common_bytes(const qn_completions *c)
{
    size_t n = strlen(c->at[0]);
    for (size_t i = 1; i < c->n; i++) {
        size_t same = 0;
        while (same < n && c->at[i][same] == c->at[0][same])
            same++;
        n = same;
    }
    while (n && ((unsigned char)c->at[0][n] & 0xc0) == 0x80)
        n--;
    return n;
}

static size_t columns_of(const char *text)
{
    size_t columns = 0;
    const size_t length = strlen(text);
    for (size_t i = 0; i < length;) {
        const qn_cluster cluster = qn_cluster_first(text + i, length - i);
        columns += cluster.columns;
        i += cluster.bytes;
    }
    return columns;
}

/* Prints the words below the text, by columns of the terminal, and at most a screen of them. */
static void list_words(qn_editor *e, const qn_completions *c)
{
    size_t width = 0;
    for (size_t i = 0; i < c->n; i++) {
        const size_t columns = columns_of(c->at[i]) + 2;
        width = columns > width ? columns : width;
    }
    FILE *to = e->display.to;
    const size_t per_row = width < e->display.columns ? e->display.columns / width : 1;
    const size_t most = per_row * (e->display.n_rows > 4 ? e->display.n_rows - 4 : 1), n = c->n < most ? c->n : most;
    qn_display_leave(&e->display);
    for (size_t i = 0; i < n; i++) {
        const bool ends_row = (i + 1) % per_row == 0 || i + 1 == n;
        fputs(c->at[i], to);
        if (ends_row)
            fputs("\r\n", to);
        else
            fprintf(to, "%*s", (int)(width - columns_of(c->at[i])), "");
    }
    if (c->n > n || c->is_cut)
        fprintf(to, "and %zu%s more\r\n", c->n - n, c->is_cut ? " or" : "");
}

static void complete(qn_editor *e)
{
    qn_completions c = { 0 };
    qn_edit *edit = &e->edit;
    if (!e->complete)
        return;
    e->complete(e->user, edit->bytes ? edit->bytes : "", edit->cursor, &c);
    if (c.n && c.from <= edit->cursor) {
        const size_t n = common_bytes(&c), typed = edit->cursor - c.from;
        if (n > typed || c.n == 1 || (n && memcmp(c.at[0], edit->bytes + c.from, n) != 0)) {
            qn_edit_remove(edit, c.from, edit->cursor);
            qn_edit_insert(edit, c.at[0], n);
            e->was_tab = false;
        } else if (e->was_tab) {
            qsort(c.at, c.n, sizeof *c.at, compare_words);
            list_words(e, &c);
        } else {
            e->was_tab = true;
        }
    }
    for (size_t i = 0; i < c.n; i++)
        free(c.at[i]);
    free(c.at);
}

/* ---- Pasted text ---- */

/* Adds a byte of a paste. A newline, which terminals may send as "\r", becomes part of the text instead of ending it.
 * Other control characters except tab are dropped: they would be keys, or control a terminal that shows them. */
static void add_pasted(qn_editor *e, unsigned char byte)
{
    const char c = byte == '\r' ? '\n' : (char)byte;
    if (byte >= 0x20 || c == '\n' || c == '\t')
        qn_edit_insert(&e->pasted, &c, 1);
}

/* Inserts the characters of a paste; bytes that are none are dropped. */
static void insert_characters(qn_edit *edit, const char *text, size_t length)
{
    size_t begin = 0;
    for (size_t i = 0, n; i < length; i += n) {
        n = text[i] == '\n' || text[i] == '\t' ? 1 : qn_harmless(text + i, length - i);
        if (n)
            continue;
        qn_edit_insert(edit, text + begin, i - begin);
        n = 1;
        begin = i + 1;
    }
    qn_edit_insert(edit, text + begin, length - begin);
}

static void end_paste(qn_editor *e)
{
    qn_edit *p = &e->pasted;
    e->is_pasting = false;
    while (p->length && p->bytes[p->length - 1] == '\n') /* a final newline does not send the message */
        p->length--;
    insert_characters(&e->edit, p->bytes ? p->bytes : "", p->length);
    p->length = p->cursor = 0;
}

/* Handles a byte of a paste. True: the paste is complete. */
static bool paste(qn_editor *e, unsigned char byte)
{
    if (byte == (unsigned char)PASTE_END[e->n_held]) {
        if (++e->n_held < PASTE_END_BYTES)
            return false;
        end_paste(e);
        return true;
    }
    for (size_t i = 0; i < e->n_held; i++) /* not the mark after all */
        add_pasted(e, (unsigned char)PASTE_END[i]);
    e->n_held = byte == (unsigned char)PASTE_END[0];
    if (!e->n_held)
        add_pasted(e, byte);
    return false;
}

/* ---- Keys ---- */

/* Does what a key of several bytes means, by its sequence after ESC [ (xterm, "PC-Style Function Keys"; "Bracketed
 * Paste Mode"). */
static void do_sequence(qn_editor *e, const char *sequence)
{
    qn_edit *edit = &e->edit;
    static const char *const words_right[] = { "1;5C", "1;3C", "5C" }, *const words_left[] = { "1;5D", "1;3D", "5D" };
    for (size_t i = 0; i < sizeof words_right / sizeof *words_right; i++) {
        if (strcmp(sequence, words_right[i]) == 0)
            edit->cursor = qn_edit_word_right(edit);
        if (strcmp(sequence, words_left[i]) == 0)
            edit->cursor = qn_edit_word_left(edit);
    }
    if (strcmp(sequence, "A") == 0)
        go_up(e);
    else if (strcmp(sequence, "B") == 0)
        go_down(e);
    else if (strcmp(sequence, "C") == 0)
        edit->cursor = qn_edit_right(edit);
    else if (strcmp(sequence, "D") == 0)
        edit->cursor = qn_edit_left(edit);
    else if (strcmp(sequence, "H") == 0 || strcmp(sequence, "1~") == 0 || strcmp(sequence, "7~") == 0)
        edit->cursor = qn_edit_line_begin(edit);
    else if (strcmp(sequence, "F") == 0 || strcmp(sequence, "4~") == 0 || strcmp(sequence, "8~") == 0)
        edit->cursor = qn_edit_line_end(edit);
    else if (strcmp(sequence, "3~") == 0)
        qn_edit_remove(edit, edit->cursor, qn_edit_right(edit));
    else if (strcmp(sequence, "200~") == 0)
        e->is_pasting = true;
    else
        qn_measure_answer(&e->display.measure, sequence);
    e->n_held = 0;
}

static void do_meta(qn_editor *e, unsigned char byte)
{
    qn_edit *edit = &e->edit;
    switch (byte) {
    case 'b': edit->cursor = qn_edit_word_left(edit); break;
    case 'f': edit->cursor = qn_edit_word_right(edit); break;
    case 'd': qn_edit_cut(edit, edit->cursor, qn_edit_word_right(edit)); break;
    case CONTROL('H'):
    case ERASE: qn_edit_cut(edit, qn_edit_word_left(edit), edit->cursor); break;
    case '\r':
    case '\n': qn_edit_insert(edit, "\n", 1); break;
    default: break;
    }
}

static void do_control(qn_editor *e, unsigned char byte)
{
    qn_edit *edit = &e->edit;
    switch (byte) {
    case CONTROL('A'): edit->cursor = 0; break;
    case CONTROL('B'): edit->cursor = qn_edit_left(edit); break;
    case CONTROL('D'): qn_edit_remove(edit, edit->cursor, qn_edit_right(edit)); break;
    case CONTROL('E'): edit->cursor = edit->length; break;
    case CONTROL('F'): edit->cursor = qn_edit_right(edit); break;
    case CONTROL('H'):
    case ERASE: qn_edit_remove(edit, qn_edit_left(edit), edit->cursor); break;
    case CONTROL('I'): complete(e); break;
    case CONTROL('K'):
        qn_edit_cut(edit, edit->cursor,
                    qn_edit_line_end(edit) > edit->cursor ? qn_edit_line_end(edit) : qn_edit_right(edit));
        break;
    case CONTROL('L'):
        fputs("\033[H\033[2J", e->display.to);
        qn_display_again(&e->display);
        break;
    case CONTROL('N'): go_down(e); break;
    case CONTROL('P'): go_up(e); break;
    case CONTROL('R'): begin_search(e); break;
    case CONTROL('T'): qn_edit_swap(edit); break;
    case CONTROL('U'): qn_edit_cut(edit, qn_edit_line_begin(edit), edit->cursor); break;
    case CONTROL('W'): qn_edit_cut(edit, qn_edit_space_left(edit), edit->cursor); break;
    case CONTROL('Y'): qn_edit_insert(edit, edit->cut ? edit->cut : "", edit->n_cut); break;
    default: break;
    }
}

/* Inserts characters when they are complete; bytes that are none are dropped. */
static void insert_byte(qn_editor *e, unsigned char byte)
{
    size_t n;
    uint32_t code;
    e->character[e->n_character++] = (char)byte;
    qn_utf8 found = qn_utf8_next(e->character, e->n_character, &n, &code);
    if (found == QN_UTF8_INVALID && e->n_character > 1) { /* the byte may begin another */
        e->character[0] = (char)byte;
        e->n_character = 1;
        found = qn_utf8_next(e->character, 1, &n, &code);
    }
    if (found == QN_UTF8_INCOMPLETE)
        return;
    if (found == QN_UTF8_COMPLETE && !qn_is_control(code))
        qn_edit_insert(&e->edit, e->character, n);
    e->n_character = 0;
}

/* Handles a byte after ESC. True: the key is complete. */
static bool take_part(qn_editor *e, unsigned char byte)
{
    if (e->part == AFTER_ESCAPE) {
        e->n_sequence = 0;
        e->part = byte == '[' ? IN_SEQUENCE : byte == 'O' ? IN_SS3 : byte == ESCAPE ? AFTER_ESCAPE : NOTHING;
        if (e->part == NOTHING)
            do_meta(e, byte);
        return e->part == NOTHING;
    }
    if (e->n_sequence + 1 < MAX_SEQUENCE)
        e->sequence[e->n_sequence++] = (char)byte;
    if (e->part == IN_SEQUENCE && byte >= 0x20 && byte < 0x40)
        return false;
    e->sequence[e->n_sequence] = 0;
    e->part = NOTHING;
    do_sequence(e, e->sequence);
    return true;
}

static qn_editor_result take_key(qn_editor *e, unsigned char byte)
{
    if (e->part != NOTHING) {
        take_part(e, byte);
        return QN_EDITOR_MORE;
    }
    if (byte != CONTROL('I'))
        e->was_tab = false;
    if (e->is_searching && take_search_key(e, byte))
        return QN_EDITOR_MORE;
    if (byte == ESCAPE)
        e->part = AFTER_ESCAPE;
    else if (byte == '\r' || byte == '\n')
        return QN_EDITOR_LINE;
    else if (byte == CONTROL('D') && !e->edit.length)
        return QN_EDITOR_END;
    else if (byte < 0x20 || byte == ERASE)
        do_control(e, byte);
    else
        insert_byte(e, byte);
    return QN_EDITOR_MORE;
}

/* ---- The editor ---- */

qn_editor *qn_editor_open(FILE *to, const char *prompt_style, const char *text_style)
{
    qn_editor *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->display.to = to;
    e->display.prompt_style = prompt_style;
    e->display.text_style = text_style;
    e->display.prompt = e->prompt = "";
    return e;
}

void qn_editor_close(qn_editor *e)
{
    if (!e)
        return;
    for (size_t i = 0; i < QN_HISTORY_ENTRIES; i++)
        free(e->entries[i]);
    free(e->own);
    qn_edit_free(&e->edit);
    qn_edit_free(&e->pasted);
    qn_display_free(&e->display);
    free(e);
}

void qn_editor_completer(qn_editor *e, qn_complete_fn *fn, void *user)
{
    e->complete = fn;
    e->user = user;
}

void qn_editor_begin(qn_editor *e, const char *prompt, const char *initial, size_t columns, size_t rows)
{
    e->prompt = prompt;
    e->entry = e->n_entries;
    e->is_searching = e->is_pasting = e->was_tab = false;
    e->part = NOTHING;
    e->n_character = e->pasted.length = e->pasted.cursor = 0;
    qn_measure_forget(&e->display.measure);
    qn_edit_set(&e->edit, initial ? initial : "", initial ? strlen(initial) : 0);
    qn_display_again(&e->display);
    qn_display_size(&e->display, columns, rows);
    redraw(e);
}

qn_editor_result qn_editor_feed(qn_editor *e, const char *bytes, size_t n, size_t *used)
{
    qn_editor_result result = QN_EDITOR_MORE;
    size_t i = 0;
    while (i < n && result == QN_EDITOR_MORE) {
        const unsigned char byte = (unsigned char)bytes[i++];
        if (e->is_pasting)
            paste(e, byte);
        else
            result = take_key(e, byte);
    }
    *used = i;
    if (result == QN_EDITOR_LINE)
        e->edit.cursor = e->edit.length;
    if (!e->is_pasting)
        redraw(e);
    return result;
}

void qn_editor_redraw(qn_editor *e, bool anew, size_t columns, size_t rows)
{
    if (anew)
        qn_display_again(&e->display);
    qn_display_size(&e->display, columns, rows);
    redraw(e);
}

const char *qn_editor_text(const qn_editor *e, size_t *length)
{
    *length = e->edit.length;
    return e->edit.bytes ? e->edit.bytes : "";
}

void qn_editor_leave(qn_editor *e)
{
    qn_display_leave(&e->display);
}

bool qn_editor_is_pasting(const qn_editor *e)
{
    return e->is_pasting;
}
