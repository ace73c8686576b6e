/* Builds conversations for chat templates from parts: texts, reasoning, calls and results, in the order of the body.
 * Adjacent parts of one role become one message, as templates expect turns.
 *
 * System texts before all other parts are the system message. Later system texts stay in place: most templates allow
 * system messages only at the beginning, so they are appended, between tags, to the user text or result before them.
 * There they neither move the last user message, before which templates drop reasoning, nor separate a call from its
 * result. */
#ifndef QN_PROTOCOL_TURNS_H
#define QN_PROTOCOL_TURNS_H

#include "protocol/json_body.h"

typedef enum qn_turn { QN_TURN_NONE, QN_TURN_USER, QN_TURN_ANSWER, QN_TURN_RESULT } qn_turn;

typedef struct qn_turns {
    qn_reading *reading; /* counts copies of texts; borrowed */
    json_t *messages;    /* the complete messages, in order, without that of the system */
    qn_turn turn;        /* the role of the open message */
    qn_bytes system;     /* the system message */
    qn_bytes content, reasoning;
    json_t *calls;    /* of the open answer */
    char *id;         /* of the open answer's reasoning, or of the open result's call */
    qn_bytes waiting; /* system texts after an answer, for the next user text or result */
    bool has_failed;  /* see qn_reading_refuse */
} qn_turns;

/* qn_turns_init - begin an empty conversation; `reading` counts its texts. */
void qn_turns_init(qn_turns *turns, qn_reading *reading);

/* qn_turns_free - free the parts that qn_turns_finish has not taken. Called in any case. */
void qn_turns_free(qn_turns *turns);

/* The functions below add a copy of a part. Texts of the system, of the user and of one result are joined by an empty
 * line, texts of an answer by nothing. Empty texts add no text. */

/* qn_turns_system - add a text of the system. */
void qn_turns_system(qn_turns *turns, const char *text, size_t length);

/* qn_turns_user - add a text of the user. */
void qn_turns_user(qn_turns *turns, const char *text, size_t length);

/* qn_turns_answer - add a text of an answer. */
void qn_turns_answer(qn_turns *turns, const char *text, size_t length);

/* qn_turns_reasoning - add reasoning of an answer. id: from qn_exchange_reasoning_id, or NULL. */
void qn_turns_reasoning(qn_turns *turns, const char *text, size_t length, const char *id);

/* qn_turns_call - add a call of an answer. Takes over the reference to `arguments`, an object; NULL sets has_failed. */
void qn_turns_call(qn_turns *turns, const char *id, const char *name, json_t *arguments);

/* qn_turns_result - begin the result of a call, even an empty one. */
void qn_turns_result(qn_turns *turns, const char *id);

/* qn_turns_result_text - add a text to the open result. */
void qn_turns_result_text(qn_turns *turns, const char *text, size_t length);

/* qn_turns_ends_with_call - whether the last message so far is an answer with calls. */
bool qn_turns_ends_with_call(const qn_turns *turns);

/* qn_turns_finish - complete the conversation: all messages, that of the system first, with an empty user message if
 * there is none; tools, unless NULL, with a reference of its own; and the header of the next answer. continues: if the
 * last message is an answer, the next answer continues it instead. False: see qn_reading_refuse. */
bool qn_turns_finish(qn_turns *turns, json_t *tools, bool continues, json_t *conversation);

#endif
