/* DRY's breakers of texts: the sequences of tokens that texts become, against a slow definition, of real vocabularies
 * where they are there, and with them the texts that end a repetition. */
#include "helper_create.h"

#include "kernels/sample/sample_dry.h"

#include "engine/dry.h"

#include <unistd.h>

static const char demo[] = QN_SOURCE_DIR "/models/quern-demo.gguf";

static qn_model *load(const char *path)
{
    return create_model(path, &CPU_MODEL(.vocab_only = true));
}

/* Whether a sequence is among those that were found. */
static bool has_sequence(const qn_token *found, size_t n, const qn_token *sequence, size_t length)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        if (found[i] != -1)
            continue;
        if (i - at == length && !memcmp(found + at, sequence, length * sizeof *sequence))
            return true;
        at = i + 1;
    }
    return false;
}

/* The number of sequences that a token begins, each of which must have been found. */
static size_t check_token(const qn_model *model, qn_token token, const char *const *texts, size_t n_texts,
                          const qn_token *found, size_t n)
{
    const char *bytes;
    size_t n_bytes, count = 0;
    bool contains = false;
    assert_ok(qn_token_piece(model, token, &bytes, &n_bytes));
    for (size_t i = 0; i < n_texts; i++) {
        const size_t whole = strlen(texts[i]);
        for (size_t at = 0; at + whole <= n_bytes; at++)
            contains |= !memcmp(bytes + at, texts[i], whole);
        for (size_t length = 1; length < whole && length <= n_bytes; length++) {
            qn_token sequence[65] = { token }, *rest;
            size_t n_rest;
            if (memcmp(bytes + n_bytes - length, texts[i], length) != 0)
                continue;
            assert_ok(qn_tokenize(model, texts[i] + length, whole - length, false, false, &rest, &n_rest));
            memcpy(sequence + 1, rest, n_rest * sizeof *rest);
            qn_free_tokens(rest);
            label("token %d, text %zu, %zu bytes", (int)token, i, length);
            assert_true(has_sequence(found, n, sequence, n_rest + 1));
            count++;
        }
    }
    if (contains)
        assert_true(has_sequence(found, n, &token, 1));
    return count + contains;
}

static void check_texts(const qn_model *model, const char *const *texts, size_t n_texts)
{
    qn_token *found;
    size_t n, n_expected = 0, n_found = 0;
    assert_ok(qn_dry_breakers(model, texts, n_texts, &found, &n));
    assert_non_null(found);
    assert_ok(qn_dry_check(found, n));
    for (size_t i = 0; i < n; i++)
        n_found += found[i] == -1;
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    for (size_t token = 0; token < n_vocab; token++)
        n_expected += check_token(model, (qn_token)token, texts, n_texts, found, n);
    assert_int_equal(n_found, n_expected);
    qn_free_tokens(found);
}

TEST(texts_become_tokens)
{
    static const char *const texts[][4] = { { "\n" },          { " the" },
                                            { "\n\n", "aaa" }, { "aab", "ab", ". \"", "\xc3\xa9" },
                                            { "\xc3" },        { "Once upon" } };
    qn_model *model = load(demo);
    size_t n;
    const char *const *defaults = qn_dry_default_breakers(&n);
    assert_int_equal(n, 4);
    check_texts(model, defaults, n);
    for (size_t i = 0; i < COUNT(texts); i++) {
        for (n = 0; n < 4 && texts[i][n];)
            n++;
        check_texts(model, texts[i], n);
    }
    check_texts(model, NULL, 0);
    qn_model_free(model);
}

/* A breaker of several tokens is found in a text that has it, wherever its first token begins. */
TEST(texts_are_found)
{
    static const struct {
        const char *breaker, *text, *without;
    } cases[] = { { " upon a", "Once upon a time", "Once upon the time" },
                  { "\n", "one\ntwo", "one two" },
                  { "time, th", "Once upon a time, th", "Once upon a time, a" },
                  { ". The", "It was. The end", "It was the end" } };
    qn_model *model = load(demo);
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_token *given;
        qn_sample_breakers *breakers;
        size_t n;
        label("case %zu", i);
        assert_ok(qn_dry_breakers(model, &cases[i].breaker, 1, &given, &n));
        assert_ok(qn_dry_create(given, n, &breakers));
        qn_free_tokens(given);
        for (int has = 0; has < 2; has++) {
            qn_token *tokens;
            size_t count;
            bool is_found = false;
            const char *text = has ? cases[i].text : cases[i].without;
            assert_ok(qn_tokenize(model, text, strlen(text), false, false, &tokens, &count));
            for (size_t end = 1; end <= count; end++)
                is_found |= qn_sample_ends_breaker(breakers, tokens + end - 1, end);
            assert_int_equal(is_found, has);
            qn_free_tokens(tokens);
        }
        qn_dry_free(breakers);
    }
    qn_model_free(model);
}

static void refused(const qn_model *model, const char *const *texts, size_t n_texts, const char *part)
{
    qn_token *found;
    size_t n;
    assert_fails(qn_dry_breakers(model, texts, n_texts, &found, &n), QN_ERR_INVALID, part);
    assert_null(found);
}

TEST(bad_texts_are_refused)
{
    enum { MOST = QN_MAX_DRY_BREAKERS, BYTES = QN_MAX_DRY_BREAKER_BYTES };
    char longest[BYTES + 2], rests[26][BYTES + 1];
    const char *texts[MOST + 1];
    qn_model *model = load(demo);
    for (size_t i = 0; i <= MOST; i++)
        texts[i] = "x";
    refused(model, texts, MOST + 1, "dry_sequence_breakers: 65 texts, expected at most 64");
    check_texts(model, texts, MOST);
    texts[1] = "";
    refused(model, texts, 2, "text 2 is empty, expected 1 to 64 bytes");
    memset(longest, '-', sizeof longest);
    longest[BYTES + 1] = 0;
    texts[0] = longest;
    refused(model, texts, 1, "text 1 is longer, expected 1 to 64 bytes");
    texts[0]++;
    check_texts(model, texts, 1);
    /* Beginnings that many tokens end with, and rests of many tokens. */
    for (int i = 0; i < 26; i++) {
        for (int at = 0; at < BYTES; at++)
            rests[i][at] = (char)('!' + at * 7 % 15);
        rests[i][0] = (char)('a' + i);
        rests[i][BYTES] = 0;
        texts[i] = rests[i];
    }
    refused(model, texts, 26, "dry_sequence_breakers: the texts are more than the 16384 tokens");
    qn_model_free(model);
}

/* llama.cpp's vocabularies, which are not in the repository. */
TEST(real_vocabularies)
{
    static const char *const names[] = { "gpt-2", "llama-bpe", "qwen2" };
    static const char *const texts[] = { "\n\n", " the" };
    const char *shared = getenv("QN_SHARED");
    bool is_there = false;
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[4096];
        qn_model *model;
        qn_token *found;
        size_t n, n_defaults, n_singles = 0;
        if (shared && *shared)
            snprintf(path, sizeof path, "%s/data/vocab/ggml-vocab-%s.gguf", shared, names[i]);
        else
            snprintf(path, sizeof path, QN_SOURCE_DIR "/../shared/data/vocab/ggml-vocab-%s.gguf", names[i]);
        if (access(path, R_OK) || qn_model_load(path, &CPU_MODEL(.vocab_only = true), &model))
            continue;
        is_there = true;
        const char *const *defaults = qn_dry_default_breakers(&n_defaults);
        assert_ok(qn_dry_breakers(model, defaults, n_defaults, &found, &n));
        for (size_t at = 0; at < n; at++)
            n_singles += found[at] == -1;
        assert_int_equal(n, 2 * n_singles); /* of one byte each */
        assert_in_range(n_singles, 200, 20000);
        qn_free_tokens(found);
        assert_ok(qn_dry_breakers(model, texts, 2, &found, &n));
        assert_ok(qn_dry_check(found, n));
        qn_free_tokens(found);
        qn_model_free(model);
    }
    if (!is_there)
        skip();
}
