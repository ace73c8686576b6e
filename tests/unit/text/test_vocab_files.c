/* Real vocabularies, compared with the ids of Hugging Face's tokenisers, for llama.cpp's test texts and the golden
 * texts of tools/make_tokenizer_golden.py. The vocabularies are not in the repository: those of llama.cpp are in the
 * directory QN_SHARED, SmolLM2 is the file QN_SMOLLM2 or the one fetched by tools/fetch_smollm2.py. Missing files are
 * skipped; without any, the test exits with 77. */
#include "helper_assert.h"
#include "helper_files.h"

#include "chat/chat.h"
#include "text/tokenizer.h"

#include <time.h>
#include <unistd.h>

static int n_found;

static const char *shared_path(const char *name, const char *suffix)
{
    static char path[4096];
    const char *shared = getenv("QN_SHARED");
    if (shared && *shared)
        snprintf(path, sizeof path, "%s/data/vocab/ggml-vocab-%s.gguf%s", shared, name, suffix);
    else
        snprintf(path, sizeof path, "%s/../shared/data/vocab/ggml-vocab-%s.gguf%s", QN_SOURCE_DIR, name, suffix);
    return path;
}

static const char *smollm2_path(void)
{
    static char path[4096];
    const char *given = getenv("QN_SMOLLM2"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    static const char name[] = "quern/smollm2-135m-instruct-q4_1.gguf";
    if (given && *given)
        snprintf(path, sizeof path, "%s", given);
    else if (cache && *cache)
        snprintf(path, sizeof path, "%s/%s", cache, name);
    else
        snprintf(path, sizeof path, "%s/.cache/%s", home ? home : "", name);
    return path;
}

/* The file's tokeniser, and its chat template if `chat` is not NULL; skips the test if the file is missing. */
static qn_tokenizer *open_vocab(const char *path, qn_chat_template **chat)
{
    qn_gguf *file;
    qn_tokenizer *tok;
    if (access(path, R_OK) != 0)
        skip();
    n_found++;
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_tokenizer_create(file, &tok));
    if (chat)
        assert_ok(qn_chat_template_create(file, tok, NULL, chat));
    qn_gguf_close(file);
    return tok;
}

static void check_ids(const qn_tokenizer *tok, const char *text, size_t n, const char *ids, const char *what)
{
    int32_t *tokens;
    size_t count;
    assert_ok(qn_tokenizer_encode(tok, text, n, true, false, &tokens, &count));
    for (size_t i = 0; i < count; i++) {
        char *end;
        const long id = strtol(ids, &end, 10);
        if (end == ids || id != tokens[i])
            fail_msg("%s: token %zu is %d, expected %.20s", what, i, tokens[i], ids);
        ids = end;
    }
    free(tokens);
    if (strspn(ids, " ") != strlen(ids))
        fail_msg("%s: %zu tokens, expected more: %.20s", what, count, ids);
}

/* .inp: texts separated by lines "__ggml_vocab_test__"; .out: a line of ids for each. */
static void check_llama_cpp(const char *name)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    qn_tokenizer *tok = open_vocab(shared_path(name, ""), NULL);
    char *texts = read_file(shared_path(name, ".inp"), NULL), *ids = read_file(shared_path(name, ".out"), NULL);
    char *text = texts, *line = ids;
    int n = 0;
    while (*line) {
        char *text_end = strstr(text, between), *line_end = strchr(line, '\n'), what[64];
        assert_non_null(line_end);
        *line_end = '\0';
        snprintf(what, sizeof what, "%s, text %d", name, n++);
        check_ids(tok, text, text_end ? (size_t)(text_end - text) : strlen(text), line, what);
        line = line_end + 1;
        text = text_end ? text_end + sizeof between - 1 : text + strlen(text);
    }
    assert_true(n > 40);
    assert_int_equal(*text, '\0');
    free(texts);
    free(ids);
    qn_tokenizer_free(tok);
}

TEST(test_qwen2)
{
    check_llama_cpp("qwen2");
}

TEST(test_gpt_2)
{
    check_llama_cpp("gpt-2");
}

TEST(test_llama_bpe)
{
    check_llama_cpp("llama-bpe");
}

/* Resolves the escapes of a golden text in place; returns its length. */
static size_t unescape(char *text)
{
    size_t n = 0;
    for (const char *c = text; *c; c++) {
        if (*c != '\\') {
            text[n++] = *c;
            continue;
        }
        c++;
        text[n++] = (char)(*c == 'n' ? '\n' : *c == 'r' ? '\r' : *c == 't' ? '\t' : *c == '0' ? '\0' : *c);
    }
    return n;
}

/* Lines of count, text and ids, separated by tabs. */
static void check_golden(const qn_tokenizer *tok, const char *name)
{
    char path[4096], *state = NULL;
    snprintf(path, sizeof path, "%s/tests/golden/tokenizer_%s.txt", QN_SOURCE_DIR, name);
    char *golden = read_file(path, NULL);
    int n = 0;
    for (char *line = strtok_r(golden, "\n", &state); line; line = strtok_r(NULL, "\n", &state)) {
        if (*line == '#')
            continue;
        char *text, *ids, what[64];
        const size_t count = strtoul(line, &text, 10);
        text++;
        ids = strchr(text, '\t');
        assert_non_null(ids);
        *ids++ = '\0';
        const size_t length = unescape(text);
        char *repeated = malloc(count * length + 1);
        assert_non_null(repeated);
        for (size_t i = 0; i < count; i++)
            memcpy(repeated + i * length, text, length);
        snprintf(what, sizeof what, "%s, golden text %d", name, ++n);
        check_ids(tok, repeated, count * length, ids, what);
        free(repeated);
    }
    assert_true(n > 80);
    free(golden);
}

TEST(test_qwen2_golden)
{
    qn_tokenizer *tok = open_vocab(shared_path("qwen2", ""), NULL);
    check_golden(tok, "qwen2");
    qn_tokenizer_free(tok);
}

TEST(test_smollm2)
{
    qn_chat_template *chat;
    qn_tokenizer *tok = open_vocab(smollm2_path(), &chat);
    check_golden(tok, "smollm2");

    static const char printed[] =
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 12?<|im_end|>\n<|im_start|>assistant\n";
    json_t *conversation = json_pack("{s:[{s:s, s:s}], s:b}", "messages", "role", "user", "content", "What is 12?",
                                     "add_generation_prompt", 1);
    int32_t *tokens, *expected;
    size_t count, n_expected;
    assert_string_equal(qn_chat_template_name(chat), "file");
    assert_ok(qn_chat_encode(tok, chat, conversation, 0, &tokens, &count));
    json_decref(conversation);
    assert_ok(qn_tokenizer_encode(tok, printed, sizeof printed - 1, true, false, &expected, &n_expected));
    assert_int_equal(count, n_expected);
    assert_memory_equal(tokens, expected, count * sizeof *tokens);
    free(tokens);
    free(expected);
    qn_chat_template_free(chat);
    qn_tokenizer_free(tok);
}

static void check_round_trip(const qn_tokenizer *tok, const char *text, size_t n)
{
    int32_t *tokens;
    size_t count, made = 0;
    assert_ok(qn_tokenizer_encode(tok, text, n, false, false, &tokens, &count));
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t length;
        assert_ok(qn_tokenizer_piece(tok, tokens[i], &bytes, &length));
        assert_true(made + length <= n);
        assert_memory_equal(bytes, text + made, length);
        made += length;
    }
    assert_int_equal(made, n);
    free(tokens);
}

/* Round trip of random bytes. For qwen2 without lead bytes of 2- and 3-byte characters, so that normalisation changes
 * nothing. */
TEST(test_random_bytes)
{
    static const char *const names[] = { "gpt-2", "llama-bpe", "qwen2" };
    for (size_t v = 0; v < 3; v++) {
        qn_tokenizer *tok = open_vocab(shared_path(names[v], ""), NULL);
        label("%s", names[v]);
        srand(9);
        for (int round = 0; round < 2000; round++) {
            label("round %d", round);
            char text[100];
            const size_t n = (size_t)rand() % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)(v == 2 ? rand() % 0xc0 : rand() % 256);
            check_round_trip(tok, text, n);
        }
        qn_tokenizer_free(tok);
    }
}

/* A million equal letters take about a second; the bound of 10 allows for sanitizers and slow hosts. */
TEST(test_long_run)
{
    enum { N = 1000000 };
    qn_tokenizer *tok = open_vocab(shared_path("qwen2", ""), NULL);
    char *text = malloc(N);
    assert_non_null(text);
    for (const char *c = "a \n."; *c; c++) {
        int32_t *tokens;
        size_t count;
        memset(text, *c, N);
        const clock_t begin = clock();
        assert_ok(qn_tokenizer_encode(tok, text, N, true, false, &tokens, &count));
        assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 10);
        assert_true(count > 0 && count < N / 4);
        free(tokens);
    }
    free(text);
    qn_tokenizer_free(tok);
}

int main(void)
{
    const int failed = run_all_tests();
    return failed ? failed : n_found ? 0 : 77;
}
