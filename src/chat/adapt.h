/* Adapts conversations to a chat template. Templates differ in the roles, contents, arguments and efforts that they
 * know. Whatever a template accepts is passed unchanged. */
#ifndef QN_CHAT_ADAPT_H
#define QN_CHAT_ADAPT_H

#include "jinja/jinja.h"

/* Levels of reasoning_effort, in ascending order. */
enum { QN_EFFORT_LEVELS = 7 };
extern const char *const qn_effort_levels[QN_EFFORT_LEVELS]; /* none, minimal, low, medium, high, xhigh, max */

/* What a template supports, found from its names and constants and by rendering it. */
typedef struct qn_chat_traits {
    bool has_developer;                 /* it knows the role developer */
    bool merges_system;                 /* it accepts at most one system message at the beginning */
    bool folds_system, folds_developer; /* it accepts no system, or developer, message after other messages */
    bool needs_user;                    /* it fails on messages without one of the user's, and accepts an empty one */
    bool reads_parts;                   /* it reads contents that are arrays of text parts */
    bool reads_argument_text;           /* it does not fail on tool calls whose arguments are JSON text */
    bool wants_argument_text;           /* it needs arguments as text */
    bool refuses_null;                  /* it fails on, or prints, a null content of a message with calls */
    bool reads_reasoning;               /* it reads `reasoning` of a message */
    bool has_thinking;                  /* it reads enable_thinking */
    bool has_effort;                    /* it reads reasoning_effort */
    bool is_strict;                     /* it refuses an unknown reasoning_effort */
    unsigned efforts; /* the levels that it distinguishes, bits 1 << index in qn_effort_levels; 0: none */
    const char *names[QN_EFFORT_LEVELS]; /* [n_names] the names of these levels */
    size_t n_names;
} qn_chat_traits;

/* Enclose a system message that is folded into another message. */
#define QN_REMINDER_OPEN "<system-reminder>"
#define QN_REMINDER_CLOSE "</system-reminder>"

/* qn_chat_traits_of - finds the traits of a template. Renders it a few times, with limits that keep this to
 * milliseconds. */
void qn_chat_traits_of(const qn_jinja *jinja, qn_chat_traits *traits);

/* qn_chat_adapt - changes a conversation to a form that a template with these traits accepts.
 *
 *   conversation   an object; unchanged
 *   out            the conversation itself, or a changed copy; release it with json_decref
 *
 * Changes:
 *   developer          an unsupported role developer becomes system
 *   system             several system messages at the beginning become one, if the template accepts at most one. If it
 *                      accepts none after other messages, a later one is put between QN_REMINDER_OPEN and
 *                      QN_REMINDER_CLOSE at the end of the preceding message, if that is the user's or a tool's, else
 *                      at the beginning of the user's next one; if an assistant's message comes before that, it becomes
 *                      a user's message
 *   user               if the template fails without a message of the user, an empty one is put after the system
 *                      messages at the beginning of a conversation that has none: a system text alone, or a call and
 *                      its result
 *   parts              contents of text parts become text, if the template does not read parts
 *   content            null next to tool calls becomes an empty text, if the template fails on null or prints it
 *   reasoning          becomes reasoning_content, if the template does not read it and the message has no
 *                      reasoning_content
 *   arguments          of tool calls: JSON text becomes an object, or an object becomes text if the template needs text
 *   reasoning_effort   null counts as not given. A level that the template refuses becomes the nearest higher one that
 *                      it has, else the nearest lower one. A level that it accepts but does not distinguish becomes the
 *                      nearest one that it does, on the same side of medium. "none" sets enable_thinking to false if
 *                      the template has no such level
 *
 * QN_ERR_INVALID   a content has parts that are not text, or arguments are not the JSON text of an object */
qn_status qn_chat_adapt(const qn_chat_traits *traits, const json_t *conversation, json_t **out);

#endif
