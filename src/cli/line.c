/* Reading lines, with libedit where it can be used. */
#include "cli/line.h"

#include "cli/cli.h"
#include "cli/signals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef QN_HAVE_LIBEDIT
#include <histedit.h>
#endif

struct qn_line {
    const char *prompt;
#ifdef QN_HAVE_LIBEDIT
    EditLine *edit; /* NULL where standard input is not a terminal */
    History *history;
#endif
};

#ifdef QN_HAVE_LIBEDIT
static char *prompt_of(EditLine *edit)
{
    qn_line *line = NULL;
    el_get(edit, EL_CLIENTDATA, &line);
    return (char *)(uintptr_t)line->prompt; /* libedit does not write into it */
}

static void open_editor(qn_line *line)
{
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO))
        return;
    HistEvent event;
    line->history = history_init();
    if (line->history)
        history(line->history, &event, H_SETSIZE, 500);
    line->edit = el_init("quern", stdin, stdout, stderr);
    if (!line->edit)
        return; /* the plain reader serves */
    el_set(line->edit, EL_CLIENTDATA, line);
    el_set(line->edit, EL_PROMPT, prompt_of);
    el_set(line->edit, EL_EDITOR, "emacs");
    el_set(line->edit, EL_SIGNAL, 0); /* the program's own handler stays in charge of Ctrl-C */
    if (line->history)
        el_set(line->edit, EL_HIST, history, line->history);
}

static const char *edit_line(qn_line *line, int *length)
{
    const char *text = el_gets(line->edit, length);
    if (text && *length > 0 && *text != '\n' && line->history) {
        HistEvent event;
        history(line->history, &event, H_ENTER, text);
    }
    return text;
}
#endif

bool qn_line_open(qn_line **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        qn_cli_error("no memory for the line editor");
        return false;
    }
#ifdef QN_HAVE_LIBEDIT
    open_editor(*out);
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
#endif
    free(line);
}

/* A line of standard input with its newline, in memory of the caller; NULL at the end or on failure. */
static char *plain_line(const char *prompt, int *length)
{
    if (isatty(STDIN_FILENO)) {
        fputs(prompt, stderr);
        fflush(stderr);
    }
    char *text = NULL;
    size_t capacity = 0;
    errno = 0;
    const ssize_t got = getline(&text, &capacity, stdin);
    if (got < 0) {
        free(text);
        return NULL;
    }
    *length = (int)got;
    return text;
}

qn_line_result qn_line_read(qn_line *line, const char *prompt, char **text)
{
    int length = 0;
    char *copy = NULL;
    line->prompt = prompt;
#ifdef QN_HAVE_LIBEDIT
    if (line->edit) {
        errno = 0;
        const char *edited = edit_line(line, &length);
        if (edited && length > 0)
            copy = strndup(edited, (size_t)length);
        else
            putchar('\n');
    } else {
        copy = plain_line(prompt, &length);
    }
#else
    copy = plain_line(prompt, &length);
#endif
    if (qn_signals_stop()) {
        free(copy);
        clearerr(stdin);
        return QN_LINE_INTERRUPTED;
    }
    if (!copy && ferror(stdin)) {
        qn_cli_error("standard input: %s", strerror(errno));
        return QN_LINE_FAILED;
    }
    if (!copy)
        return QN_LINE_END;
    length = (int)strcspn(copy, "\n");
    copy[length] = 0;
    *text = copy;
    return QN_LINE_READ;
}
