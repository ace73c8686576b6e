/* Conversations whose last message is continued, `continue_final_message`: what the template prints up to the end of that message's
 * content, so that an answer goes on with it. */
#ifndef QN_CHAT_CONTINUE_H
#define QN_CHAT_CONTINUE_H

#include "jinja/jinja.h"

/* qn_chat_continues - whether the last message of a conversation is to be continued.
 *
 * QN_ERR_INVALID   it cannot be: it is not the assistant's, has tool calls or no text as its content; or the header of a new one is
 *                  wanted, too */
qn_status qn_chat_continues(const json_t *conversation, bool *continues);

/* qn_chat_mark_content - a copy of such a conversation, which qn_chat_adapt has made, to be rendered: the last content ends with a
 * mark. Release it with json_decref. */
qn_status qn_chat_mark_content(const json_t *conversation, json_t **marked);

/* qn_chat_cut_at_mark - cut what the template printed before the mark.
 *
 *   conversation   without the mark
 *   think_close    the delimiter in a content after which templates print what follows alone; NULL: none
 *
 * QN_ERR_INVALID   the template does not print the content as it is */
qn_status qn_chat_cut_at_mark(const json_t *conversation, const char *think_close, qn_jinja_output *output);

#endif
