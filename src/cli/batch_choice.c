/* A choice of an answer of quern batch: what comes of it is collected, and written in OpenAI's form. */
#include "cli/batch.h"

#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static bool append(qn_batch_choice *choice, qn_batch_text *to, const char *text, size_t length)
{
    if (qn_realloc_array(&to->data, &to->capacity, to->length + length, 1, "text of an answer")) {
        choice->has_failed = true;
        return false;
    }
    memcpy(to->data + to->length, text, length);
    to->length += length;
    return true;
}

bool qn_batch_choice_text(qn_batch_choice *choice, const char *text, size_t length)
{
    return append(choice, &choice->text, text, length);
}

/* ---- Calls ---- */

/* Calls of one job have different ids, and so have those of different jobs, of which some may become parts of one conversation. */
static void print_id(const qn_batch_choice *choice, char *id, size_t size)
{
    const qn_batch_job *job = choice->job;
    const uint64_t hash = XXH64(job->custom_id, strlen(job->custom_id), (uint64_t)(choice - job->choices));
    snprintf(id, size, "call_%zu_%016llx", json_array_size(choice->calls), (unsigned long long)hash);
}

static bool add_call(qn_batch_choice *choice)
{
    char id[64];
    if (!choice->calls)
        choice->calls = json_array();
    print_id(choice, id, sizeof id);
    json_t *call = json_pack("{s:s, s:s, s:{s:s%, s:s%}}", "id", id, "type", "function", "function", "name", choice->name.data,
                             choice->name.length, "arguments", choice->arguments.data, choice->arguments.length);
    choice->has_failed = json_array_append_new(choice->calls, call) != 0;
    return !choice->has_failed;
}

bool qn_batch_choice_event(qn_batch_choice *choice, const qn_output_event *event)
{
    switch (event->kind) {
    case QN_OUTPUT_REASONING: return append(choice, &choice->reasoning, event->text, event->length);
    case QN_OUTPUT_CONTENT: break;
    case QN_OUTPUT_CALL_BEGIN:
        choice->name.length = choice->arguments.length = 0;
        return append(choice, &choice->name, event->text, event->length);
    case QN_OUTPUT_ARGUMENTS: return append(choice, &choice->arguments, event->text, event->length);
    case QN_OUTPUT_CALL_END:
        if (event->call_end == QN_OUTPUT_COMPLETE)
            return add_call(choice);
        break; /* the text of a call that is not complete is content */
    }
    return append(choice, &choice->text, event->text, event->length);
}

/* ---- The form ---- */

static const char *finish_reason(const qn_batch_choice *choice)
{
    if (choice->result.finish != QN_FINISH_STOP)
        return "length";
    return choice->calls ? "tool_calls" : "stop";
}

static json_t *string_of(const qn_batch_text *text)
{
    return json_stringn(text->data ? text->data : "", text->length);
}

static json_t *message_of(const qn_batch_choice *choice)
{
    json_t *content = choice->calls && !choice->text.length ? json_null() : string_of(&choice->text);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    bool done = message != NULL;
    if (choice->reasoning.length)
        done = done && json_object_set_new(message, "reasoning_content", string_of(&choice->reasoning)) == 0;
    if (choice->calls)
        done = done && json_object_set(message, "tool_calls", choice->calls) == 0;
    if (done)
        return message;
    json_decref(message);
    return NULL;
}

json_t *qn_batch_choice_json(const qn_batch_choice *choice, const qn_model *model, size_t index)
{
    const bool is_chat = choice->job->is_chat;
    json_t *logprobs = choice->job->params.n_logprobs >= 0 ? qn_batch_logprobs(choice, model) : json_null();
    return json_pack("{s:I, s:o, s:o, s:s}", "index", (json_int_t)index, is_chat ? "message" : "text",
                     is_chat ? message_of(choice) : string_of(&choice->text), "logprobs", logprobs, "finish_reason",
                     finish_reason(choice));
}

void qn_batch_choice_free(qn_batch_choice *choice)
{
    free(choice->text.data);
    free(choice->reasoning.data);
    free(choice->name.data);
    free(choice->arguments.data);
    free(choice->tokens);
    json_decref(choice->calls);
}
