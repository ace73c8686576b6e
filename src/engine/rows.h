/* Rows of sessions that are not tokens at the position after the row before them: embeddings, and tokens at positions
 * of their own. A session lists only these (qn_session.own_rows), so a session of text has no list. A session is used
 * by one thread at a time. */
#ifndef QN_ENGINE_ROWS_H
#define QN_ENGINE_ROWS_H

#include "engine/internal.h"

/* qn_rows_check - Checks rows that are to be appended to a session. Errors are those of qn_session_eval_rows. */
qn_status qn_rows_check(const qn_session *session, const qn_rows *rows);

/* qn_session_components - Computes the components of the position of row `index`, which is at most the session's
 * length. */
void qn_session_components(const qn_session *session, uint32_t index, uint32_t components[QN_ROPE_COMPONENTS]);

/* qn_session_list_rows - Adds rows [first, first + n) to the list, where they need it: they become the session's rows
 * from its length on. After an error, and if they are not appended, call qn_session_unlist_rows. */
qn_status qn_session_list_rows(qn_session *session, const qn_rows *rows, size_t first, size_t n);

/* qn_session_unlist_rows - Removes the rows from `length` on. */
void qn_session_unlist_rows(qn_session *session, uint32_t length);

/* qn_session_find_embedding - Returns the index of the first row of [begin, end) that is an embedding; `end` if there
 * is none. */
uint32_t qn_session_find_embedding(const qn_session *session, uint32_t begin, uint32_t end);

/* qn_session_shared_rows - Returns the number of rows, at most `most`, that a session and a prompt begin with. A
 * row of the prompt with neither token nor id is not shared. */
size_t qn_session_shared_rows(const qn_session *session, const qn_rows *rows, size_t most);

/* qn_rows_check_prompt - Checks the rows of qn_session_truncate_to_rows. */
qn_status qn_rows_check_prompt(const qn_session *session, const qn_rows *rows);

/* qn_session_copy_rows - Copies the list to another session, whose list is empty. */
qn_status qn_session_copy_rows(qn_session *to, const qn_session *from);

/* qn_session_check_rows - Checks a list that was read from a file, with the session's tokens: QN_ERR_FORMAT, and
 * QN_ERR_UNSUPPORTED if the device does not take such rows. */
qn_status qn_session_check_rows(const qn_session *session, const char *path);

#endif
