/* A line editor: keys of Emacs as shells have them, history, search in it, completion, pasted text. It is given the
 * bytes that a terminal sends, and draws on one. Characters are grapheme clusters (cli/columns.h): a flag or a letter
 * with its accents is one. */
#ifndef QN_CLI_EDITOR_H
#define QN_CLI_EDITOR_H

#include "cli/edit_text.h"

#include <stdio.h>

typedef struct qn_editor qn_editor;

/* What a word can be completed to. */
typedef struct qn_completions {
    size_t from; /* index in the text at which the word begins */
    char **at;   /* [n] words to put there, each with what follows it: "/save ", "folder/" */
    size_t n, capacity;
    bool is_cut; /* there are more */
} qn_completions;

enum { QN_COMPLETIONS_MAX = 4096 };

/* qn_completions_add - adds a word of n bytes and what follows it. Without memory, or after QN_COMPLETIONS_MAX, it is
 * left out. */
void qn_completions_add(qn_completions *completions, const char *word, size_t n, const char *after);

/* Adds the completions of the word before the cursor, which is the end of text [length]. */
typedef void qn_complete_fn(void *user, const char *text, size_t length, qn_completions *completions);

typedef enum qn_editor_result {
    QN_EDITOR_MORE, /* the text is not complete */
    QN_EDITOR_LINE, /* Enter */
    QN_EDITOR_END   /* Ctrl-D on an empty line */
} qn_editor_result;

/* qn_editor_open - creates an editor that draws on `to`, with styles of cli/terminal.h or "". NULL: no memory. */
qn_editor *qn_editor_open(FILE *to, const char *prompt_style, const char *text_style);
void qn_editor_close(qn_editor *editor);

/* qn_editor_completer - sets what Tab does; NULL: nothing. */
void qn_editor_completer(qn_editor *editor, qn_complete_fn *complete, void *user);

/* qn_editor_remember - adds a text to the history; the oldest of more than QN_HISTORY_ENTRIES is dropped. */
void qn_editor_remember(qn_editor *editor, const char *text);

/* qn_editor_begin - begins a text, and draws it after a prompt of printable ASCII, which outlives the text.
 *
 *   initial   text to edit, or NULL */
void qn_editor_begin(qn_editor *editor, const char *prompt, const char *initial, size_t columns, size_t rows);

/* qn_editor_feed - takes bytes until the text is complete.
 *
 *   used   how many of them; those that are left are for the next text */
qn_editor_result qn_editor_feed(qn_editor *editor, const char *bytes, size_t n, size_t *used);

/* qn_editor_redraw - draws again, for this size of the terminal.
 *
 *   anew   from the cursor on, as others have printed something */
void qn_editor_redraw(qn_editor *editor, bool anew, size_t columns, size_t rows);

/* qn_editor_text - the text, terminated, valid until the next call. */
const char *qn_editor_text(const qn_editor *editor, size_t *length);

/* qn_editor_leave - leaves what is drawn and moves below it. */
void qn_editor_leave(qn_editor *editor);

/* qn_editor_is_pasting - whether a paste has begun and not ended. */
bool qn_editor_is_pasting(const qn_editor *editor);

#endif
