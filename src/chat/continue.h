/* Conversations whose last message is continued (`continue_final_message`): the rendered text is cut at the end of
 * that message's content, so that the answer continues it. */
#ifndef QN_CHAT_CONTINUE_H
#define QN_CHAT_CONTINUE_H

#include "jinja/jinja.h"

/* qn_chat_continues - whether the last message of a conversation is to be continued.
 *
 * QN_ERR_INVALID   it cannot be continued: it is not the assistant's, has tool calls or no text content, or a
 *                  generation prompt is requested, too */
qn_status qn_chat_continues(const json_t *conversation, bool *continues);

/* qn_chat_mark_content - copies a conversation that qn_chat_adapt has made, with a mark at the end of its last
 * content. Release the copy with json_decref. */
qn_status qn_chat_mark_content(const json_t *conversation, json_t **marked);

/* qn_chat_cut_at_mark - cuts the text that a marked conversation was rendered to before the mark.
 *
 *   conversation   without the mark
 *   think_close    the delimiter in a content of which templates print only the text after it; NULL: none
 *
 * QN_ERR_INVALID   the template does not print the content unchanged */
qn_status qn_chat_cut_at_mark(const json_t *conversation, const char *think_close, qn_jinja_output *output);

#endif
