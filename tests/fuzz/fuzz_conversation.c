/* Files of conversations, as chat's /load and --load read them: any JSON is opened; if it is accepted, it is rendered,
 * saved and opened again, and must be the same. Text typed afterwards must not break it.
 *
 * An input is: the file, a zero byte, a text. */
static const char *const json_words[] = { "messages",
                                          "role",
                                          "content",
                                          "user",
                                          "assistant",
                                          "system",
                                          "developer",
                                          "tool",
                                          "tool_calls",
                                          "function",
                                          "name",
                                          "arguments",
                                          "type",
                                          "id",
                                          "text",
                                          "reasoning",
                                          "reasoning_content",
                                          "tool_call_id",
                                          "enable_thinking",
                                          "reasoning_effort",
                                          "low",
                                          "add_generation_prompt",
                                          (const char *)0 };

#include "mutate_json.h"
#include "vocab_model.h"

#include "cli/conversation.h"

enum { MAX_TEXT = 2000, CAPACITY = 2000 };

static qn_model *model;

static void render(qn_conversation *c, size_t capacity)
{
    qn_cli_prompt prompt;
    if (qn_conversation_prompt(c, capacity, capacity / 4, &prompt) != QN_OK) {
        require(*qn_error_text(), "a refusal has a text");
        return;
    }
    require(prompt.count < capacity && prompt.n_messages <= prompt.count, "a prompt fits");
    for (size_t i = 0; i < prompt.count; i++)
        require(prompt.tokens[i] >= 0 && (uint32_t)prompt.tokens[i] < qn_model_get_info(model)->n_vocab,
                "tokens are in the vocabulary");
    qn_cli_prompt_free(&prompt);
}

static void require_equal(const qn_conversation *a, const qn_conversation *b)
{
    require((a->system != NULL) == (b->system != NULL) && (!a->system || !strcmp(a->system, b->system)),
            "the system message stays");
    require(json_equal(a->messages, b->messages) && json_equal(a->thinking, b->thinking), "messages and settings stay");
}

/* Saves the conversation and opens the result. */
static void round_trip(qn_conversation *c)
{
    char path[96];
    qn_conversation again;
    size_t n_loaded;
    char *folder = memory_folder("conversation");
    snprintf(path, sizeof path, "%.80s/saved", folder);
    require(qn_conversation_save(c, path) == QN_OK, "it is saved");
    require(qn_conversation_begin(&again, model, "another system message", NULL) == QN_OK, "memory");
    require(qn_conversation_open(&again, path, &n_loaded) == QN_OK && !n_loaded, "what was saved opens");
    require_equal(c, &again);
    require(qn_conversation_save(&again, path) == QN_OK, "it replaces what it is");
    qn_conversation_free(&again);
    unlink(path);
    rmdir(folder);
    free(folder);
}

static void go_on(qn_conversation *c, const char *text)
{
    const char *last = NULL;
    require(qn_conversation_add(c, "user", text, NULL) == QN_OK, "a text is added");
    const size_t at = qn_conversation_last_user(c, &last);
    require(at == json_array_size(c->messages) - 1 && last, "it is the last");
    render(c, CAPACITY);
    render(c, 20);
    qn_conversation_truncate(c, at);
    require(json_array_size(c->messages) == at, "it is dropped");
    (void)qn_conversation_last_user(c, &last);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    return mutate_json(data, size, max_size, 0, zero ? (size_t)(zero - data) : size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t length = zero ? (size_t)(zero - data) : size, left = zero ? size - length - 1 : 0;
    char path[64], text[MAX_TEXT + 1];
    qn_conversation c, before;
    if (!model)
        model = load_vocab_model();
    snprintf(text, sizeof text, "%.*s", (int)(left < MAX_TEXT ? left : MAX_TEXT), zero ? (const char *)zero + 1 : "");
    const int fd = memory_file(data, length, path);
    require(qn_conversation_begin(&c, model, "be brief", "low") == QN_OK &&
                qn_conversation_begin(&before, model, "be brief", "low") == QN_OK,
            "memory");
    size_t n_loaded;
    if (qn_conversation_open(&c, path, &n_loaded) == QN_OK) {
        round_trip(&c);
        go_on(&c, text);
    } else {
        require(*qn_error_text(), "a refusal has a text");
        require_equal(&c, &before);
    }
    qn_conversation_free(&c);
    qn_conversation_free(&before);
    close(fd);
    return 0;
}
