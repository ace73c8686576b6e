/* Wraps streamed text. The terminal itself breaks what has no place for a break: copied from there, a long address or a
 * line of code is still one line. */
#include "cli/wrap.h"

#include "cli/cli.h"
#include "cli/terminal.h"

#include "base/append.h"
#include "base/printable.h"
#include "base/utf8.h"

#include <string.h>

/* JOINED: columns of a family of four, where terminals add them up. */
enum { TAB = 8, MIN_FENCE = 3, JOINED = 8 };

void qn_wrap_begin(qn_wrap *w, FILE *to)
{
    *w = (qn_wrap){ .to = to };
}

void qn_wrap_again(qn_wrap *w)
{
    fputc('\n', w->to);
    w->column = w->word_column = w->n_word = 0;
    w->breaks = w->has_unsure_line = w->has_unsure_word = false;
}

/* ---- Code ---- */

/* Follows a line's beginning, for fences as CommonMark has them: three or more of one character, in an opening one
 * followed by anything but the same character if it is '`'. */
static void watch_fence(qn_wrap *w, uint32_t code)
{
    if (!w->mark && (code == ' ' || code == '\t'))
        return;
    if (!w->mark)
        w->mark = code == '`' || code == '~' ? (char)code : ' ';
    if (w->mark == ' ')
        return;
    if (!w->has_info && code == (uint32_t)w->mark)
        w->n_marks++;
    else if (code == '`' && w->mark == '`')
        w->mark = ' ';
    else if (code != ' ' && code != '\t')
        w->has_info = true;
    else if (!w->has_info && w->n_fence == 0)
        w->has_info = w->n_marks > 0; /* a space ends an opening fence */
}

static void end_fence(qn_wrap *w)
{
    const bool is_fence = w->mark != ' ' && w->n_marks >= MIN_FENCE;
    if (is_fence && !w->n_fence) {
        w->n_fence = w->n_marks;
        w->fence = w->mark;
    } else if (is_fence && w->mark == w->fence && w->n_marks >= w->n_fence && !w->has_info) {
        w->n_fence = 0;
    }
    w->n_marks = 0;
    w->mark = 0;
    w->has_info = false;
}

/* ---- Lines ---- */

static void begin_word(qn_wrap *w)
{
    w->has_unsure_line |= w->has_unsure_word;
    w->has_unsure_word = false;
    w->n_word = 0;
    w->word_column = w->column;
    w->is_fixed = false;
}

static void break_line(qn_wrap *w)
{
    fputc('\n', w->to);
    w->column = w->word_column = 0;
    w->has_unsure_line = w->breaks = false;
}

static void end_line(qn_wrap *w)
{
    break_line(w);
    w->has_unsure_word = false;
    begin_word(w);
    end_fence(w);
}

/* Returns the columns that a line may use. The last one is left free where the cursor is moved by a number of columns,
 * which would be one too many in the state after the last column. */
static size_t limit_of(const qn_wrap *w)
{
    return w->has_unsure_line && w->columns > 1 ? w->columns - 1 : w->columns;
}

static bool may_move(const qn_wrap *w)
{
    return w->word_column > 0 && !w->n_fence && !w->is_fixed && !(w->has_unsure_line && w->has_unsure_word);
}

/* Takes the word from its line and prints it in the next one. */
static void move_word(qn_wrap *w)
{
    const size_t columns = w->column - w->word_column;
    if (w->n_word && w->has_unsure_line)
        fprintf(w->to, "\033[%zuD\033[K", columns);
    else if (w->n_word)
        fprintf(w->to, "\033[%zuG\033[K", w->word_column + 1);
    break_line(w);
    fwrite(w->word, 1, w->n_word, w->to);
    w->column = columns;
}

static void print_space(qn_wrap *w)
{
    if (w->n_fence || w->column < limit_of(w)) {
        if (!w->breaks)
            fputc(' ', w->to);
        w->column += !w->breaks;
        if (w->column > w->columns)
            w->column = 1;
    } else {
        w->breaks = true;
    }
    begin_word(w);
}

static void print_tab(qn_wrap *w)
{
    const size_t next = (w->column / TAB + 1) * TAB;
    if (next < w->columns && !w->breaks) {
        fputc('\t', w->to);
        w->column = next;
        begin_word(w);
    } else {
        print_space(w);
    }
}

/* Whether the line may end between two clusters without a space: at wide characters, as in Chinese and Japanese, and at
 * emoji. What follows a cluster about which terminals differ can be moved only without it. */
static bool may_break(uint32_t before, bool is_unsure, uint32_t code)
{
    return (is_unsure || qn_columns_of(before) == 2 || qn_columns_of(code) == 2 || qn_may_join(code)) &&
           !qn_is_wide_closing(code) && !qn_is_wide_opening(before);
}

static void remember(qn_wrap *w, const char *bytes, size_t n)
{
    if (n > sizeof w->word - w->n_word) {
        w->is_fixed = true;
        return;
    }
    memcpy(w->word + w->n_word, bytes, n);
    w->n_word += n;
}

static void print_character(qn_wrap *w, uint32_t code, const char *bytes, size_t n)
{
    bool begins;
    const uint32_t before = (uint32_t)w->text.last;
    const bool was_unsure = w->text.is_unsure;
    const unsigned columns = qn_columns_add(&w->text, code, &begins);
    if (w->breaks)
        break_line(w);
    if (begins && w->column > 0 && may_break(before, was_unsure, code))
        begin_word(w);
    const size_t needed = begins && w->has_unsure_line && qn_may_join(code) ? JOINED : columns;
    if (w->column + needed > limit_of(w) && may_move(w))
        move_word(w);
    if (w->column + columns > limit_of(w)) {
        if (columns > 1 || w->has_unsure_line || w->has_unsure_word)
            break_line(w);
        w->column = 0;
        w->is_fixed = true;
    }
    fwrite(bytes, 1, n, w->to);
    w->has_unsure_word |= w->text.is_unsure;
    w->column += columns;
    remember(w, bytes, n);
}

/* Sets the width of the terminal. A line that is longer than a terminal which became narrower may now be two, or one
 * that was cut. */
static void set_columns(qn_wrap *w, size_t columns)
{
    if (columns != w->columns && w->column > columns) {
        w->column = columns;
        w->has_unsure_line = w->has_unsure_word = w->is_fixed = true;
    }
    w->columns = columns;
}

void qn_wrap_text(qn_wrap *w, const char *text, size_t length, size_t columns)
{
    set_columns(w, columns);
    for (size_t i = 0, n; i < length; i += n) {
        uint32_t code;
        const bool is_valid = qn_utf8_next(text + i, length - i, &n, &code) == QN_UTF8_COMPLETE;
        if (!is_valid || (qn_is_control(code) && code != '\n' && code != '\t'))
            continue;
        if (code == '\n' || code == '\t' || code == ' ') {
            bool begins;
            qn_columns_add(&w->text, code, &begins);
        }
        if (code != '\n')
            watch_fence(w, code);
        if (code == '\n')
            end_line(w);
        else if (code == '\t')
            print_tab(w);
        else if (code == ' ')
            print_space(w);
        else
            print_character(w, code, text + i, n);
    }
}

void qn_wrap_print(FILE *to, const char *format, ...)
{
    char text[4096];
    size_t columns, rows;
    va_list arguments;
    qn_wrap wrap;
    qn_text_buffer buffer = QN_APPEND_TO(text);
    va_start(arguments, format);
    qn_append_list(&buffer, format, arguments);
    va_end(arguments);
    if (!qn_terminal_moves(to)) {
        qn_print_text(to, text, buffer.length);
        return;
    }
    qn_terminal_size(to, &columns, &rows);
    qn_wrap_begin(&wrap, to);
    qn_wrap_text(&wrap, text, buffer.length, columns);
}
