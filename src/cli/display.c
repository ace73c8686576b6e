/* Lays out and draws an edited text. */
#include "cli/display.h"

#include "cli/columns.h"
#include "cli/terminal.h"

#include "base/memory.h"
#include "base/printable.h"

#include <stdlib.h>
#include <string.h>

/* Shown at the beginning of lines after the first. */
#define CONTINUES ". "

enum { TAB = 8, CONTINUES_COLUMNS = sizeof CONTINUES - 1 };

void qn_display_free(qn_display *d)
{
    free(d->shown.bytes);
    free(d->shown.rows);
    free(d->next.bytes);
    free(d->next.rows);
}

/* ---- Layout ---- */

struct place {
    size_t row, column;
};

/* A walk over the clusters of a text, each with its place. */
struct walk {
    const qn_measure *measure;
    const char *text;
    size_t length, at, columns;
    struct place next; /* where a cluster without columns would go */
    qn_cluster cluster;
    struct place place;
};

static struct walk walk_of(const qn_display *d, const char *text, size_t length)
{
    return (struct walk){
        .measure = &d->measure, .text = text, .length = length, .columns = d->columns, .next.column = strlen(d->prompt)
    };
}

static void wrap(struct walk *w, size_t columns)
{
    if (w->next.column + columns <= w->columns)
        return;
    w->next.row++;
    w->next.column = 0;
}

static size_t columns_of(const struct walk *w)
{
    const uint32_t first = w->cluster.first;
    if (first == '\t')
        return TAB - w->next.column % TAB;
    if (qn_is_control(first) && first < 0x80)
        return 2; /* ^X */
    return w->cluster.columns ? w->cluster.columns : qn_is_control(first) || first >= 0x80;
}

/* Goes on to the next cluster and its place; false at the end of the text, whose place is then set. */
static bool step(struct walk *w)
{
    if (w->at >= w->length) {
        wrap(w, 1);
        w->place = w->next;
        return false;
    }
    w->cluster = qn_cluster_first(w->text + w->at, w->length - w->at);
    const size_t measured = w->cluster.is_unsure ? qn_measure_find(w->measure, w->text + w->at, w->cluster.bytes) : 0;
    if (measured) {
        w->cluster.columns = (unsigned)measured;
        w->cluster.is_unsure = false;
    }
    const bool ends_line = w->cluster.first == '\n';
    const size_t columns = ends_line ? 1 : columns_of(w);
    if (columns <= w->columns)
        wrap(w, columns);
    w->place = w->next;
    w->at += w->cluster.bytes;
    if (ends_line)
        w->next = (struct place){ w->next.row + 1, CONTINUES_COLUMNS };
    else
        w->next.column += columns;
    return true;
}

/* ---- Frames ---- */

static void put(qn_frame *f, const char *bytes, size_t n)
{
    if (!n || qn_realloc_array(&f->bytes, &f->capacity, f->length + n, 1, "display"))
        return;
    memcpy(f->bytes + f->length, bytes, n);
    f->length += n;
}

static void put_text(qn_frame *f, const char *text)
{
    put(f, text, strlen(text));
}

static void begin_row(qn_display *d, const char *mark)
{
    qn_frame *f = &d->next;
    if (qn_realloc_array(&f->rows, &f->rows_capacity, f->n_rows + 1, sizeof *f->rows, "display"))
        return;
    f->rows[f->n_rows++] = (qn_display_row){ .begin = f->length, .end = f->length };
    if (*mark) {
        put_text(f, d->prompt_style);
        put_text(f, mark);
        if (*d->prompt_style)
            put_text(f, QN_STYLE_PLAIN);
    }
    put_text(f, d->text_style);
}

static void end_row(qn_display *d, size_t columns)
{
    qn_frame *f = &d->next;
    if (!f->n_rows)
        return;
    if (*d->text_style)
        put_text(f, QN_STYLE_PLAIN);
    f->rows[f->n_rows - 1].end = f->length;
    f->rows[f->n_rows - 1].columns = columns;
}

/* Prints a cluster about which terminals differ: what the last drawing left in its columns is erased, and what follows
 * has its place in any case. */
static void put_unsure(qn_display *d, const struct walk *w, const char *bytes)
{
    char sequence[32];
    qn_frame *f = &d->next;
    put(f, bytes, w->cluster.bytes);
    if (w->next.column >= w->columns)
        return;
    if (qn_measure_ask(&d->measure, bytes, w->cluster.bytes, w->place.column))
        put_text(f, QN_MEASURE_QUESTION);
    snprintf(sequence, sizeof sequence, "\033[K\033[%zuG", w->next.column + 1);
    put_text(f, sequence);
}

static void put_cluster(qn_display *d, const struct walk *w)
{
    qn_frame *f = &d->next;
    const uint32_t first = w->cluster.first;
    const char *bytes = w->text + w->at - w->cluster.bytes;
    const size_t after = w->next.column;
    if (first == '\t') {
        for (size_t i = w->place.column; i < after; i++)
            put(f, " ", 1);
    } else if (qn_is_control(first) && first < 0x80) {
        const char shown[2] = { '^', (char)(first ^ 0x40) };
        put(f, shown, sizeof shown);
    } else if (!qn_harmless(bytes, w->cluster.bytes) || !w->cluster.columns) {
        put(f, "?", 1);
    } else if (w->cluster.is_unsure) {
        put_unsure(d, w, bytes);
    } else {
        put(f, bytes, w->cluster.bytes);
    }
}

/* Returns the place of the cursor. *end: that of the end of the text. */
static struct place find(const qn_display *d, const char *text, size_t length, size_t cursor, struct place *end)
{
    struct place found = { 0 };
    bool is_found = false;
    struct walk w = walk_of(d, text, length);
    for (;;) {
        const size_t at = w.at;
        const bool more = step(&w);
        if (!is_found && (!more || at >= cursor)) {
            found = w.place;
            is_found = true;
        }
        if (!more)
            break;
    }
    *end = w.place;
    return found;
}

/* The rows from `first` on. */
static void lay_out(qn_display *d, const char *text, size_t length, size_t first)
{
    size_t row = 0, column = strlen(d->prompt);
    bool continues = false; /* the row begins with a line of the text */
    struct walk w = walk_of(d, text, length);
    d->next.length = d->next.n_rows = 0;
    if (first == 0)
        begin_row(d, d->prompt);
    for (bool more = true; more;) {
        more = step(&w);
        for (; row < w.place.row; row++, column = 0) {
            if (row >= first)
                end_row(d, column);
            if (row + 1 >= first + d->n_rows)
                return;
            if (row + 1 >= first)
                begin_row(d, continues ? CONTINUES : "");
            continues = false;
        }
        if (more && row >= first && w.cluster.first != '\n')
            put_cluster(d, &w);
        continues = more && w.cluster.first == '\n';
        column = more && !continues ? w.next.column : w.place.column;
    }
    end_row(d, column);
}

/* ---- Drawing ---- */

static bool is_same_row(const qn_display *d, size_t row)
{
    if (row >= d->shown.n_rows)
        return false;
    const qn_display_row *a = &d->shown.rows[row], *b = &d->next.rows[row];
    const size_t n = b->end - b->begin;
    return a->end - a->begin == n && (!n || memcmp(d->shown.bytes + a->begin, d->next.bytes + b->begin, n) == 0);
}

static bool is_same(const qn_display *d)
{
    bool same = d->shown.n_rows == d->next.n_rows && d->shown.cursor_row == d->next.cursor_row &&
                d->shown.cursor_column == d->next.cursor_column;
    for (size_t r = 0; same && r < d->next.n_rows; r++)
        same = is_same_row(d, r);
    return same;
}

static void move_to(FILE *to, size_t up, size_t column)
{
    if (up)
        fprintf(to, "\033[%zuA", up);
    fputc('\r', to);
    if (column)
        fprintf(to, "\033[%zuC", column);
}

static void draw(qn_display *d)
{
    const qn_frame *next = &d->next;
    move_to(d->to, d->shown.cursor_row, 0);
    for (size_t r = 0; r < next->n_rows; r++) {
        if (r)
            fputs("\r\n", d->to);
        if (is_same_row(d, r))
            continue;
        const qn_display_row *row = &next->rows[r];
        if (row->end > row->begin)
            fwrite(next->bytes + row->begin, 1, row->end - row->begin, d->to);
        if (row->columns < d->columns) /* after the last column it would erase the last character */
            fputs("\033[K", d->to);
    }
    if (d->shown.n_rows > next->n_rows)
        fputs("\r\n\033[J\033[A", d->to);
    move_to(d->to, next->n_rows - 1 - next->cursor_row, next->cursor_column);
    fflush(d->to);
}

void qn_display_size(qn_display *d, size_t columns, size_t rows)
{
    const bool is_same = d->columns == columns && d->n_rows == rows;
    d->columns = columns;
    d->n_rows = rows;
    if (is_same || !d->shown.n_rows)
        return;
    move_to(d->to, d->shown.cursor_row < rows ? d->shown.cursor_row : rows - 1, 0);
    fputs("\033[J", d->to);
    qn_display_again(d);
}

void qn_display_draw(qn_display *d, const char *text, size_t length, size_t cursor)
{
    struct place end;
    const struct place at = find(d, text, length, cursor, &end);
    size_t first = end.row + 1 > d->n_rows ? end.row + 1 - d->n_rows : 0;
    if (at.row < first)
        first = at.row;
    lay_out(d, text, length, first);
    if (!d->next.n_rows || at.row - first >= d->next.n_rows)
        return; /* no memory */
    d->next.cursor_row = at.row - first;
    d->next.cursor_column = at.column;
    if (is_same(d))
        return;
    draw(d);
    const qn_frame shown = d->next;
    d->next = d->shown;
    d->shown = shown;
}

void qn_display_leave(qn_display *d)
{
    if (d->shown.n_rows > d->shown.cursor_row + 1)
        fprintf(d->to, "\033[%zuB", d->shown.n_rows - 1 - d->shown.cursor_row);
    fputs("\r\n", d->to);
    fflush(d->to);
    qn_display_again(d);
}

void qn_display_again(qn_display *d)
{
    d->shown.n_rows = d->shown.cursor_row = d->shown.cursor_column = 0;
}
