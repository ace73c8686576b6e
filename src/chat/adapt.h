/* Conversations in a form that a chat template accepts: templates differ in the roles, contents, arguments and efforts that
 * they know. What a template accepts is rendered as it is given. */
#ifndef QN_CHAT_ADAPT_H
#define QN_CHAT_ADAPT_H

#include "jinja/jinja.h"

/* Levels of reasoning_effort, least first. */
enum { QN_EFFORT_LEVELS = 7 };
extern const char *const qn_effort_levels[QN_EFFORT_LEVELS]; /* none, minimal, low, medium, high, xhigh, max */

/* What a template supports, found by its names and constants and by rendering it. */
typedef struct qn_chat_traits {
    bool has_developer;                 /* the role developer */
    bool merges_system;                 /* of several system messages at the beginning it takes one at most */
    bool folds_system, folds_developer; /* it does not take one after other messages */
    bool reads_parts;                   /* contents that are arrays of parts with text */
    bool reads_argument_text;           /* arguments of tool calls as JSON text do not make it fail */
    bool wants_argument_text;           /* they must be text */
    bool refuses_null;                  /* it fails where a message with calls has the content null, or prints it */
    bool reads_reasoning;               /* a message's key `reasoning` */
    bool has_thinking;                  /* enable_thinking */
    bool has_effort;                    /* reasoning_effort */
    bool is_strict;                     /* it refuses a reasoning_effort that it does not know */
    unsigned efforts; /* the levels that it knows, bits 1 << index in qn_effort_levels; 0: all are one to it */
    const char *names[QN_EFFORT_LEVELS]; /* [n_names] these levels */
    size_t n_names;
} qn_chat_traits;

/* What a system message that is folded into another one is put in. */
#define QN_REMINDER_OPEN "<system-reminder>"
#define QN_REMINDER_CLOSE "</system-reminder>"

/* qn_chat_traits_of - the traits of a template. Renders it a few times, under limits that take milliseconds at most. */
void qn_chat_traits_of(const qn_jinja *jinja, qn_chat_traits *traits);

/* qn_chat_adapt - a conversation as a template with these traits accepts it.
 *
 *   conversation   an object; unchanged
 *   out            the conversation itself, or a copy where something had to change; release it with json_decref
 *
 * Changes are:
 *   developer          a role that the template does not have becomes system
 *   system             several messages at the beginning become one, if the template takes one at most. Where it takes none
 *                      after other messages, a later one goes between QN_REMINDER_OPEN and QN_REMINDER_CLOSE to the end of the
 *                      message before it, if that is the user's or a tool's, else to the beginning of the user's next one
 *   parts              contents of text parts become text, if the template does not read parts
 *   content            null beside tool calls becomes an empty text, if the template fails on null or prints it
 *   reasoning          becomes reasoning_content, if the template does not read it and the message has no other
 *   arguments          of tool calls given as JSON text become objects, and objects text if the template wants text
 *   reasoning_effort   null is as if it were not given. A level that the template refuses becomes the nearest one above it, else
 *                      below it, that it has. One that it accepts but does not know becomes the nearest one that it knows on
 *                      the same side of medium. "none" sets enable_thinking to false where it is no level of the template
 *
 * QN_ERR_INVALID   contents have parts that are not text; arguments are not the text of an object */
qn_status qn_chat_adapt(const qn_chat_traits *traits, const json_t *conversation, json_t **out);

#endif
