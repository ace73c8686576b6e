/* Builds conversations from parts. */
#include "protocol/turns.h"

#include "chat/adapt.h"

#include <stdlib.h>
#include <string.h>

/* Memory of a message's member, besides its text. */
enum { MEMBER_BYTES = 256 };

static const char tag[] = QN_REMINDER_OPEN, end_tag[] = QN_REMINDER_CLOSE;

void qn_turns_init(qn_turns *turns, qn_reading *reading)
{
    *turns = (qn_turns){ .reading = reading };
    turns->system.account = turns->content.account = turns->reasoning.account = turns->waiting.account =
        reading->account;
}

void qn_turns_free(qn_turns *turns)
{
    json_decref(turns->messages);
    json_decref(turns->calls);
    qn_bytes_free(&turns->system);
    qn_bytes_free(&turns->content);
    qn_bytes_free(&turns->reasoning);
    qn_bytes_free(&turns->waiting);
    free(turns->id);
}

/* ---- Messages ---- */

static void check(qn_turns *turns, bool done)
{
    turns->has_failed = turns->has_failed || !done;
}

/* Sets a member, whose reference is taken over; NULL sets has_failed. */
static void set(qn_turns *turns, json_t *message, const char *key, json_t *value)
{
    check(turns, json_object_set_new(message, key, value) == 0);
}

/* Sets a member to a copy of a text that was collected, and empties the text. */
static void set_text(qn_turns *turns, json_t *message, const char *key, qn_bytes *text)
{
    const bool has_memory = !text->has_failed && qn_reading_take(turns->reading, MEMBER_BYTES + text->length);
    set(turns, message, key, has_memory ? json_stringn(text->length ? text->data : "", text->length) : NULL);
    qn_bytes_free(text);
}

/* Completes the open message, if there is one, and appends it to the messages. */
static void close_turn(qn_turns *turns)
{
    static const char *const roles[] = {
        [QN_TURN_USER] = "user", [QN_TURN_ANSWER] = "assistant", [QN_TURN_RESULT] = "tool"
    };
    json_t *message = turns->turn == QN_TURN_NONE ? NULL : json_object();
    if (turns->turn != QN_TURN_NONE) {
        set(turns, message, "role", json_string(roles[turns->turn]));
        if (turns->turn == QN_TURN_RESULT)
            set(turns, message, "tool_call_id", json_string(turns->id ? turns->id : ""));
        set_text(turns, message, "content", &turns->content);
    }
    if (turns->reasoning.length)
        set_text(turns, message, "reasoning_content", &turns->reasoning);
    if (turns->turn == QN_TURN_ANSWER && turns->id)
        set(turns, message, "reasoning_id", json_string(turns->id));
    if (turns->calls)
        set(turns, message, "tool_calls", turns->calls);
    if (!turns->messages)
        turns->messages = json_array();
    if (message)
        check(turns, json_array_append_new(turns->messages, message) == 0);
    turns->calls = NULL;
    free(turns->id);
    turns->id = NULL;
    turns->turn = QN_TURN_NONE;
}

static void set_id(qn_turns *turns, const char *id)
{
    char *copy = strdup(id);
    check(turns, copy != NULL);
    free(turns->id);
    turns->id = copy;
}

/* ---- Texts ---- */

/* Appends a text after an empty line, if it is not the first. */
static void add_text(qn_bytes *to, const char *text, size_t length)
{
    if (length && to->length)
        qn_bytes_add(to, "\n\n", 2);
    qn_bytes_add(to, text, length);
}

/* Appends the system texts that wait to the open message. */
static void add_waiting(qn_turns *turns)
{
    check(turns, !turns->waiting.has_failed);
    add_text(&turns->content, turns->waiting.data, turns->waiting.length);
    turns->waiting.length = 0;
}

/* Begins a message of a role, unless one is open. System texts that wait are added to the last of several results. */
static void open_turn(qn_turns *turns, qn_turn turn)
{
    if (turns->turn == QN_TURN_RESULT && turn == QN_TURN_ANSWER)
        add_waiting(turns);
    if (turns->turn != turn)
        close_turn(turns);
    turns->turn = turn;
}

/* Appends a text of the system between tags, unless it has them. */
static void add_tagged(qn_bytes *to, const char *text, size_t length)
{
    const bool has_tags = length >= strlen(tag) && !memcmp(text, tag, strlen(tag));
    if (has_tags) {
        add_text(to, text, length);
        return;
    }
    add_text(to, tag, strlen(tag));
    qn_bytes_print(to, "\n");
    qn_bytes_add(to, text, length);
    qn_bytes_print(to, "\n%s", end_tag);
}

void qn_turns_system(qn_turns *turns, const char *text, size_t length)
{
    if (!length)
        return;
    if (turns->turn == QN_TURN_NONE)
        add_text(&turns->system, text, length);
    else
        add_tagged(turns->turn == QN_TURN_ANSWER ? &turns->waiting : &turns->content, text, length);
}

void qn_turns_user(qn_turns *turns, const char *text, size_t length)
{
    open_turn(turns, QN_TURN_USER);
    add_waiting(turns);
    add_text(&turns->content, text, length);
}

void qn_turns_answer(qn_turns *turns, const char *text, size_t length)
{
    open_turn(turns, QN_TURN_ANSWER);
    qn_bytes_add(&turns->content, text, length);
}

void qn_turns_reasoning(qn_turns *turns, const char *text, size_t length, const char *id)
{
    open_turn(turns, QN_TURN_ANSWER);
    qn_bytes_add(&turns->reasoning, text, length);
    if (id && *id && !turns->id)
        set_id(turns, id);
}

void qn_turns_call(qn_turns *turns, const char *id, const char *name, json_t *arguments)
{
    open_turn(turns, QN_TURN_ANSWER);
    json_t *call = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name", name,
                             "arguments", arguments);
    if (!turns->calls)
        turns->calls = json_array();
    check(turns, json_array_append_new(turns->calls, call) == 0);
}

void qn_turns_result(qn_turns *turns, const char *id)
{
    close_turn(turns);
    turns->turn = QN_TURN_RESULT;
    set_id(turns, id);
}

void qn_turns_result_text(qn_turns *turns, const char *text, size_t length)
{
    add_text(&turns->content, text, length);
}

/* ---- The end ---- */

bool qn_turns_ends_with_call(const qn_turns *turns)
{
    return turns->turn == QN_TURN_ANSWER && turns->calls && !turns->waiting.length;
}

static bool has_user(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++)
        if (!strcmp(json_string_value(json_object_get(json_array_get(messages, i), "role")), "user"))
            return true;
    return false;
}

bool qn_turns_finish(qn_turns *turns, json_t *tools, bool continues, json_t *conversation)
{
    if (turns->waiting.length && turns->turn == QN_TURN_RESULT)
        add_waiting(turns);
    else if (turns->waiting.length)
        qn_turns_user(turns, "", 0);
    continues = continues && turns->turn == QN_TURN_ANSWER;
    close_turn(turns);
    check(turns, !turns->waiting.has_failed && !turns->system.has_failed && turns->messages);
    if (!turns->has_failed && !has_user(turns->messages)) {
        json_t *user = json_pack("{s:s, s:s}", "role", "user", "content", "");
        check(turns,
              json_array_insert_new(turns->messages, continues ? 0 : json_array_size(turns->messages), user) == 0);
    }
    if (turns->system.length) {
        json_t *message = json_object();
        set(turns, message, "role", json_string("system"));
        set_text(turns, message, "content", &turns->system);
        check(turns, json_array_insert_new(turns->messages, 0, message) == 0);
    }
    return !turns->has_failed && json_object_set(conversation, "messages", turns->messages) == 0 &&
           (!tools || json_object_set(conversation, "tools", tools) == 0) &&
           json_object_set_new(conversation, "add_generation_prompt", json_boolean(!continues)) == 0 &&
           (!continues || json_object_set_new(conversation, "continue_final_message", json_true()) == 0);
}
