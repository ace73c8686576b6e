/* Conversations from parts: texts, reasoning, calls and results, in the order in which a body has them, become messages for chat
 * templates. Parts that follow each other in one role are one message, as templates take turns.
 *
 * The system's texts before all else are the system message. Later ones stay where they are: templates mostly take system
 * messages at the beginning alone, so they are appended to the user's text or to the result before them, between tags. There
 * they do not move the last message of the user, before which templates drop reasoning, nor come between a call and its
 * result. */
#ifndef QN_PROTOCOL_TURNS_H
#define QN_PROTOCOL_TURNS_H

#include "protocol/json_body.h"

typedef enum qn_turn { QN_TURN_NONE, QN_TURN_USER, QN_TURN_ANSWER, QN_TURN_RESULT } qn_turn;

typedef struct qn_turns {
    qn_reading *reading; /* which copies of texts count with */
    json_t *messages;    /* the complete ones */
    qn_turn turn;        /* whose message is open */
    qn_bytes system;     /* of the system message */
    qn_bytes content, reasoning;
    json_t *calls;    /* of the open answer */
    char *id;         /* of its reasoning, or of the open result's call */
    qn_bytes waiting; /* of the system, after an answer: for the next text of a user or result */
    bool has_failed;  /* see qn_reading_refuse */
} qn_turns;

void qn_turns_init(qn_turns *turns, qn_reading *reading);
void qn_turns_free(qn_turns *turns);

/* Parts. Texts of the system, of the user and of a result have an empty line between them, those of an answer none. Empty texts
 * add nothing.
 *
 *   qn_turns_call     arguments: an object; a reference is taken over, NULL is a failure
 *   qn_turns_result   begins a result, even an empty one; qn_turns_result_text continues it
 *   qn_turns_reasoning   id: as of qn_exchange_reasoning_id, or NULL */
void qn_turns_system(qn_turns *turns, const char *text, size_t length);
void qn_turns_user(qn_turns *turns, const char *text, size_t length);
void qn_turns_answer(qn_turns *turns, const char *text, size_t length);
void qn_turns_reasoning(qn_turns *turns, const char *text, size_t length, const char *id);
void qn_turns_call(qn_turns *turns, const char *id, const char *name, json_t *arguments);
void qn_turns_result(qn_turns *turns, const char *id);
void qn_turns_result_text(qn_turns *turns, const char *text, size_t length);

/* qn_turns_ends_with_call - whether the last message so far is an answer that has calls. */
bool qn_turns_ends_with_call(const qn_turns *turns);

/* qn_turns_finish - completes a conversation: all messages, with an empty one of the user if there is none; tools, unless they are
 * NULL; the header of the answer that follows. continues: if the last message is an answer, the one that follows continues it instead.
 * False: see qn_reading_refuse. */
bool qn_turns_finish(qn_turns *turns, json_t *tools, bool continues, json_t *conversation);

#endif
