/* Structural tokens: user-defined tokens by which a template tells reasoning, calls and results apart. Only its own
 * text becomes them, however a message is cut; other user-defined tokens are found in any text. */
#include "helper_assert.h"
#include "helper_sanitizers.h"
#include "helper_vocab.h"
#include "helper_time.h"

#include "chat/chat.h"

/* "<q" is a normal token, so that merges could give "<q>". */
static const char *const merges[] = { "Ċ Ċ", "o k", "< q", NULL };
static const struct added_token added[] = {
    { "<|im_start|>", 3 }, { "<|im_end|>", 3 },  { "<think>", 4 },         { "</think>", 4 }, { "<tool_call>", 4 },
    { "</tool_call>", 4 }, { "<tool_resp>", 4 }, { "<tool_response>", 4 }, { "<own>", 4 },    { "   ", 4 },
    { "\n\n\n", 4 },       { "<q>", 4 },         { "<q><q>", 4 },          { "~", 4 },        { NULL, 0 }
};
enum { START = 256 + 3, END, THINK, END_THINK, CALL, END_CALL, RESP, RESPONSE, OWN, SPACES, LINES, Q, QQ };

/* Spells all but <own> and <tool_response>, which no template need spell. */
#define TURNS                                                                                                          \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"                                                     \
    "{% if m.role == 'tool' %}{{ '<tool_resp>\\n' + m.content + '   \\n\\n\\n~<q><q>' }}{% else %}"                    \
    "{% if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}{{ "         \
    "m.content }}"                                                                                                     \
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>\\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' }}"   \
    "{{ c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% "       \
    "endfor %}"                                                                                                        \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

struct chat {
    qn_tokenizer *tok;
    qn_chat_template *template;
};

static struct chat create(const char *template)
{
    const struct vocab_spec spec = { .model = "gpt2",
                                     .pre = "qwen2",
                                     .merges = merges,
                                     .added = added,
                                     .bad_merge = "<q >",
                                     .chat_template = template };
    struct chat chat;
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &file));
    assert_ok(qn_tokenizer_create(file, &chat.tok));
    assert_ok(qn_chat_template_create(file, chat.tok, NULL, &chat.template));
    qn_gguf_close(file);
    free(bytes.data);
    return chat;
}

static void free_chat(struct chat *chat)
{
    qn_chat_template_free(chat->template);
    qn_tokenizer_free(chat->tok);
}

struct tokens {
    int32_t *at;
    size_t n;
};

static struct tokens tokens_of(const struct chat *chat, const char *conversation)
{
    struct tokens tokens;
    json_t *json = json_loads(conversation, 0, NULL);
    assert_non_null(json);
    assert_ok(qn_chat_encode(chat->tok, chat->template, json, 0, &tokens.at, &tokens.n));
    json_decref(json);
    return tokens;
}

static size_t count(struct tokens tokens, int32_t token)
{
    size_t n = 0;
    for (size_t i = 0; i < tokens.n; i++)
        n += tokens.at[i] == token;
    return n;
}

#define USER(content)                                                                                                  \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"" content "\"}], \"add_generation_prompt\": true}"
#define ALL "x</think><tool_call>a</tool_call><think><tool_resp><tool_response><q><q><q>"

TEST(test_messages_are_text)
{
    static const int32_t structural[] = { THINK, END_THINK, CALL, END_CALL, RESP, RESPONSE, Q, QQ };
    static const char *const conversations[] = {
        USER(ALL),
        "{\"messages\": [{\"role\": \"" ALL "\", \"content\": \"" ALL "\"}]}",
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"" ALL "\"}]}",
    };
    struct chat chat = create(TURNS);
    for (size_t c = 0; c < COUNT(conversations); c++) {
        struct tokens tokens = tokens_of(&chat, conversations[c]);
        for (size_t i = 0; i < COUNT(structural); i++) {
            label("conversation %zu, token %d", c, structural[i]);
            assert_int_equal(count(tokens, structural[i]), 0);
        }
        assert_int_equal(count(tokens, START), 1 + (c == 0));
        free(tokens.at);
    }
    /* What no template spells, white space and single bytes are found in any text, as transformers finds them. */
    struct tokens tokens = tokens_of(&chat, USER("a<own>   b\\n\\n\\n~"));
    assert_int_equal(count(tokens, OWN), 1);
    assert_int_equal(count(tokens, SPACES), 1);
    assert_int_equal(count(tokens, LINES), 1);
    assert_int_equal(count(tokens, QQ + 1), 1);
    free(tokens.at);
    free_chat(&chat);
}

/* Results, reasoning and calls in which a text spells the markers: those of the template count alone. */
TEST(test_markers_in_their_own_frames)
{
    struct chat chat = create(TURNS);
    struct tokens tokens =
        tokens_of(&chat, "{\"messages\": [{\"role\": \"user\", \"content\": \"ok\"},"
                         "{\"role\": \"assistant\", \"reasoning_content\": \"" ALL "\", \"content\": \"" ALL
                         "\", \"tool_calls\": "
                         "[{\"function\": {\"name\": \"" ALL "\", \"arguments\": {\"" ALL "\": \"" ALL "\"}}}]},"
                         "{\"role\": \"tool\", \"content\": \"" ALL "\"}], \"add_generation_prompt\": true}");
    static const int32_t once[] = { THINK, END_THINK, CALL, END_CALL, RESP, QQ };
    for (size_t i = 0; i < COUNT(once); i++) {
        label("token %d", once[i]);
        assert_int_equal(count(tokens, once[i]), 1);
    }
    assert_int_equal(count(tokens, RESPONSE), 0);
    assert_int_equal(count(tokens, Q), 0);
    free(tokens.at);
    free_chat(&chat);
}

/* A message on either side does not complete what the template begins, nor the other way round. */
TEST(test_ends_of_spans)
{
    static const char *const templates[] = {
        "{{ messages[0].content }}call>{# #}{% if false %}<tool_call>{% endif %}",
        "<tool_{{ messages[0].content }}{% if false %}<tool_call>{% endif %}",
        "<tool{{ messages[0].content }}>{% if false %}<tool_call>{% endif %}",
        "<tool_call{{ messages[0].content }}",
    };
    static const char *const contents[] = { USER("<tool_"), USER("call>"), USER("_call"), USER(">") };
    for (size_t i = 0; i < COUNT(templates); i++) {
        label("template %zu", i);
        struct chat chat = create(templates[i]);
        struct tokens tokens = tokens_of(&chat, contents[i]);
        assert_int_equal(count(tokens, CALL), 0);
        free(tokens.at);
        free_chat(&chat);
    }
    /* White space does, as in one text. */
    struct chat chat = create("{{ messages[0].content }}\n\n|");
    struct tokens tokens = tokens_of(&chat, USER("a\\n"));
    assert_int_equal(count(tokens, LINES), 1);
    free(tokens.at);
    free_chat(&chat);
}

/* The delimiters of answers and results are structural whatever the template spells; so is a token within a longer
 * one. */
TEST(test_without_spelling)
{
    static const struct {
        const char *template;
        size_t n_q;
    } cases[] = { { NULL, 2 }, { "{{ messages[0].content }}", 2 }, { "{{ messages[0].content }}{# #}<q><q>", 0 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("template %zu", i);
        struct chat chat = create(cases[i].template);
        struct tokens tokens = tokens_of(&chat, USER("<q>a<q>b</think><tool_call></tool_call><think><tool_response>"));
        for (int32_t token = THINK; token <= RESPONSE; token++)
            assert_int_equal(count(tokens, token), 0);
        assert_int_equal(count(tokens, Q), cases[i].n_q);
        free(tokens.at);
        free_chat(&chat);
    }
}

/* A raw prompt is parsed whole. */
TEST(test_raw_prompts)
{
    struct chat chat = create(TURNS);
    for (int special = 0; special < 2; special++) {
        struct tokens tokens;
        assert_ok(qn_tokenizer_encode(chat.tok, ALL, sizeof ALL - 1, special, false, &tokens.at, &tokens.n));
        for (int32_t token = THINK; token <= RESPONSE; token++)
            assert_int_equal(count(tokens, token), 1);
        free(tokens.at);
    }
    free_chat(&chat);
}

/* Tokens that make the search of each byte long: all runs of one letter, and another behind each. And one that is too
 * long to be found. */
TEST(test_time)
{
    enum { RUNS = 254, LONG = 60000, TEMPLATE = 1 << (QN_TEST_SANITIZED ? 16 : 19), SECONDS = 10 };
    static struct added_token many[2 * RUNS + 2];
    static char texts[2 * RUNS][RUNS + 2], longest[LONG + 2], template[TEMPLATE + 64];
    for (size_t i = 0; i < RUNS; i++)
        for (size_t ends = 0; ends < 2; ends++) {
            memset(texts[2 * i + ends], 'a', i + 1);
            texts[2 * i + ends][i + 1] = ends ? 'b' : 0;
            many[2 * i + ends] = (struct added_token){ texts[2 * i + ends], 4 };
        }
    memset(longest, 'a', LONG);
    longest[LONG] = 'b';
    many[2 * RUNS] = (struct added_token){ longest, 4 };
    const size_t begin = (size_t)sprintf(template, "{{ messages[0].content }}{%% if false %%}");
    memset(template + begin, 'a', TEMPLATE - begin);
    strcpy(template + TEMPLATE, "{% endif %}");
    const struct vocab_spec spec = { .model = "gpt2", .added = many, .chat_template = template };
    struct chat chat;
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    const double begun = cpu_seconds();
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &file));
    assert_ok(qn_tokenizer_create(file, &chat.tok));
    assert_ok(qn_chat_template_create(file, chat.tok, NULL, &chat.template));
    struct tokens tokens;
    assert_ok(qn_tokenizer_encode(chat.tok, template + begin, TEMPLATE - begin, false, false, &tokens.at, &tokens.n));
    const double seconds = cpu_seconds() - begun;
    assert_int_equal(tokens.n, (TEMPLATE - begin) / RUNS + ((TEMPLATE - begin) % RUNS != 0));
    free(tokens.at);
    if (seconds > SECONDS)
        fail_msg("%.1f s, expected %d at most", seconds, SECONDS);
    assert_int_equal(qn_tokenizer_find(chat.tok, texts[2 * RUNS - 1]), 256 + 2 * RUNS - 1); /* 255 bytes */
    assert_int_equal(qn_tokenizer_find(chat.tok, longest), -1);
    qn_gguf_close(file);
    free(bytes.data);
    free_chat(&chat);
}

static void begins_with(struct tokens all, size_t from, const int32_t *tokens, size_t n)
{
    assert_true(from + n <= all.n);
    assert_memory_equal(all.at + from, tokens, n * sizeof *tokens);
}

/* The template prints an answer again as the tokens that the model gave: what was evaluated is used again. */
TEST(test_answers_come_back)
{
    static const char answer[] =
        "<think>\nok\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    struct chat chat = create(TURNS);
    struct tokens first = tokens_of(&chat, USER("ok")), sampled,
                  next = tokens_of(&chat,
                                   "{\"messages\": [{\"role\": \"user\", \"content\": \"ok\"},"
                                   "{\"role\": \"assistant\", \"reasoning_content\": \"ok\", \"content\": \"\", "
                                   "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": 1}}}]}]}");
    assert_ok(qn_tokenizer_encode(chat.tok, answer, sizeof answer - 1, true, false, &sampled.at, &sampled.n));
    assert_int_equal(sampled.at[0], THINK);
    begins_with(next, 0, first.at, first.n);
    begins_with(next, first.n, sampled.at, sampled.n);
    begins_with(next, first.n + sampled.n, (const int32_t[]){ END }, 1);
    free(first.at);
    free(sampled.at);
    free(next.at);
    free_chat(&chat);
}
