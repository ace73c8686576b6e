/* A progress line on standard error: only on a terminal that moves the cursor, redrawn a few times a second, removed at
 * the end. Its callback also stops the work after Ctrl-C. */
#ifndef QN_CLI_PROGRESS_H
#define QN_CLI_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_progress {
    const char *label;
    double started, drawn; /* seconds; drawn 0: nothing is on the terminal */
    size_t before;         /* done before `started`, by an earlier process */
    char note[64];         /* a value shown after the bar */
} qn_progress;

/* qn_progress_begin - begin a progress line with a label, which outlives it. */
void qn_progress_begin(qn_progress *progress, const char *label);

/* qn_progress_announce - show at once what begins, without waiting for the first update: "LABEL N UNIT…". */
void qn_progress_announce(qn_progress *progress, size_t n, const char *unit);

/* qn_progress_update - a qn_progress_fn whose user pointer is a qn_progress; NULL only watches for Ctrl-C. False:
 * Ctrl-C. */
bool qn_progress_update(void *progress, size_t done, size_t total);

/* qn_progress_log - a qn_log_fn whose user pointer is a qn_progress: prints "quern: note: LINE" above the progress
 * line. */
void qn_progress_log(void *progress, const char *line);

/* qn_progress_end - remove the line. May be called twice. */
void qn_progress_end(qn_progress *progress);

#endif
