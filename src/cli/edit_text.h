/* A text that is edited: its cursor, and what was cut from it last. */
#ifndef QN_CLI_EDIT_TEXT_H
#define QN_CLI_EDIT_TEXT_H

#include <stdbool.h>
#include <stddef.h>

enum { QN_EDIT_MAX = 16 << 20 }; /* bytes of a message */

/* Zero it before use; free it with qn_edit_free. */
typedef struct qn_edit {
    char *bytes; /* [length], zero-terminated; NULL: empty */
    size_t length, capacity;
    size_t cursor; /* always at the boundary of a cluster */
    char *cut;     /* [n_cut] or NULL */
    size_t n_cut, cut_capacity;
} qn_edit;

void qn_edit_free(qn_edit *edit);

/* qn_edit_insert - inserts bytes at the cursor, which moves after them. False: no memory, or more than QN_EDIT_MAX
 * bytes; nothing is changed. */
bool qn_edit_insert(qn_edit *edit, const char *bytes, size_t n);

/* qn_edit_set - replaces the text; the cursor is at its end. As qn_edit_insert. */
bool qn_edit_set(qn_edit *edit, const char *bytes, size_t n);

/* qn_edit_remove - removes bytes [from, to); the cursor is at `from`. */
void qn_edit_remove(qn_edit *edit, size_t from, size_t to);

/* qn_edit_cut - removes bytes [from, to) and keeps them for qn_edit_insert of edit->cut. */
void qn_edit_cut(qn_edit *edit, size_t from, size_t to);

/* The place one cluster, one word or one line before or after the cursor; the cursor's own at the end of the text. A
 * line is one of the text, which newlines end. */
size_t qn_edit_left(const qn_edit *edit);
size_t qn_edit_right(const qn_edit *edit);
size_t qn_edit_word_left(const qn_edit *edit);
size_t qn_edit_word_right(const qn_edit *edit);
size_t qn_edit_line_begin(const qn_edit *edit);
size_t qn_edit_line_end(const qn_edit *edit);

/* qn_edit_space_left - where the text between spaces that ends at the cursor begins. */
size_t qn_edit_space_left(const qn_edit *edit);

/* qn_edit_swap - swaps the clusters before and at the cursor; at the end of the text, the last two. */
void qn_edit_swap(qn_edit *edit);

#endif
