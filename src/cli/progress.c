/* Draws the progress line. */
#include "cli/progress.h"

#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/terminal.h"

#include "base/append.h"

#include <string.h>

/* Shorter work gets no line, and ten updates a second are enough. */
static const double first_draw_delay = 0.25, redraw_interval = 0.1;

enum { BAR_WIDTH = 30, MIN_BAR_WIDTH = 5, MAX_LINE = 256 };

void qn_progress_begin(qn_progress *progress, const char *label)
{
    *progress = (qn_progress){ .label = label, .started = qn_seconds() };
}

/* Shows one row, cut at the edge: a longer line could not be removed again. */
static void show(const char *line)
{
    size_t columns, rows;
    qn_terminal_size(stderr, &columns, &rows);
    fprintf(stderr, "\r%.*s\033[K", (int)(columns > 1 ? columns - 1 : 1), line);
    fflush(stderr);
}

static void draw(const qn_progress *progress, size_t done, size_t total, double elapsed)
{
    char line[MAX_LINE], end[MAX_LINE], bar[BAR_WIDTH + 1];
    const double fraction = (double)done / (double)total;
    qn_text_buffer text = QN_APPEND_TO(line), after = QN_APPEND_TO(end);
    qn_append(&after, "%3.0f%%", fraction * 100);
    if (done > progress->before && done < total) {
        const long left = (long)(elapsed * (double)(total - done) / (double)(done - progress->before) + 0.5);
        qn_append(&after, "  %ld:%02ld left", left / 60, left % 60);
    }
    qn_append(&after, "%s%s", *progress->note ? "  " : "", progress->note);
    size_t columns, rows;
    qn_terminal_size(stderr, &columns, &rows);
    const size_t others = strlen(progress->label) + sizeof " [] " + after.length;
    const size_t width = columns < others ? 0 : columns - others < BAR_WIDTH ? columns - others : BAR_WIDTH;
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)(fraction * (double)width));
    if (width < MIN_BAR_WIDTH)
        qn_append(&text, "%s %s", progress->label, end);
    else
        qn_append(&text, "%s [%.*s] %s", progress->label, (int)width, bar, end);
    show(line);
}

void qn_progress_announce(qn_progress *progress, size_t n, const char *unit)
{
    char line[MAX_LINE];
    if (!qn_terminal_moves(stderr))
        return;
    qn_text_buffer text = QN_APPEND_TO(line);
    qn_append(&text, "%s %zu %s%s...", progress->label, n, unit, n == 1 ? "" : "s");
    show(line);
    progress->drawn = qn_seconds();
}

bool qn_progress_update(void *user, size_t done, size_t total)
{
    qn_progress *progress = user;
    if (!progress || !total || !qn_terminal_moves(stderr))
        return !qn_signals_stop_requested();
    const double now = qn_seconds();
    const bool due =
        progress->drawn != 0 ? now - progress->drawn >= redraw_interval : now - progress->started >= first_draw_delay;
    if (due && done <= total) {
        draw(progress, done, total, now - progress->started);
        progress->drawn = now;
    }
    return !qn_signals_stop_requested();
}

void qn_progress_log(void *progress, const char *line)
{
    qn_progress_end(progress);
    qn_cli_error("note: %s", line);
}

void qn_progress_end(qn_progress *progress)
{
    if (progress->drawn == 0)
        return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    progress->drawn = 0;
}
