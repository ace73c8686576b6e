/* Draws the progress line. */
#include "cli/progress.h"

#include "cli/cli.h"
#include "cli/signals.h"

#include <string.h>
#include <unistd.h>

/* Shorter work gets no line, and ten updates a second are enough. */
static const double first_draw_delay = 0.25, redraw_interval = 0.1;

enum { BAR_WIDTH = 30 };

void qn_progress_begin(qn_progress *progress, const char *label)
{
    *progress = (qn_progress){ .label = label, .started = qn_seconds() };
}

static void draw(const qn_progress *progress, size_t done, size_t total, double elapsed)
{
    char bar[BAR_WIDTH + 1];
    const double fraction = (double)done / (double)total;
    const int filled = (int)(fraction * BAR_WIDTH);
    memset(bar, ' ', BAR_WIDTH);
    memset(bar, '=', (size_t)filled);
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r%s [%s] %3.0f%%", progress->label, bar, fraction * 100);
    if (done > progress->before && done < total) {
        const long left = (long)(elapsed * (double)(total - done) / (double)(done - progress->before) + 0.5);
        fprintf(stderr, "  %ld:%02ld left", left / 60, left % 60);
    }
    fprintf(stderr, "%s%s\033[K", *progress->note ? "  " : "", progress->note);
    fflush(stderr);
}

bool qn_progress_update(void *user, size_t done, size_t total)
{
    qn_progress *progress = user;
    if (!progress || !total || !isatty(STDERR_FILENO))
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
