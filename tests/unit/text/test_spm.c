/* SentencePiece tokenisers: merging by score, spaces, bytes, special tokens and unusual vocabularies; and vocabularies
 * trained by tools/compare_tokenizers.py, of SentencePiece and of every pre-tokeniser, with the ids that sentencepiece
 * and tokenizers give for their texts. */
#include "helper_assert.h"
#include "helper_files.h"
#include "helper_vocab.h"

#include "grammar/vocab.h"
#include "text/tokenizer.h"

#include <math.h>
#include <time.h>

#define SP "\xe2\x96\x81"

enum { UNK, BOS, EOS, BYTES, FIRST = BYTES + 256 };

static const struct spm_token tokens[] = {
    { SP, 1, -1 },     { "a", 1, -2 },   { "b", 1, -3 },      { "c", 1, -4 },       { "ab", 1, -7 }, { "bc", 1, -6 },
    { SP "a", 1, -8 }, { "abc", 1, -9 }, { SP "abc", 1, -9 }, { SP SP, 1, -5 },     { "<t>", 4, 0 }, { "<end>", 3, 0 },
    { "aa", 5, -1 },   { "aaa", 1, -2 }, { "<0x41>b", 1, 0 }, { "\xc3\xa9", 1, 0 }, { NULL, 0, 0 },
};
enum {
    SPACE = FIRST,
    A,
    B,
    C,
    AB,
    BC,
    SPACE_A,
    ABC,
    SPACE_ABC,
    SPACE_2,
    USER_T,
    CONTROL_END,
    AA_UNUSED,
    AAA,
    ODD,
    E_ACUTE
};

static qn_tokenizer *tok; /* of the current test */

static qn_status create(const struct spm_spec *spec)
{
    struct file_bytes bytes = make_spm_vocab(spec);
    qn_gguf *file;
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &file));
    const qn_status status = qn_tokenizer_create(file, &tok);
    qn_gguf_close(file);
    free(bytes.data);
    return status;
}

static void create_plain(int space_prefix, int remove_spaces)
{
    const struct spm_spec spec = {
        .tokens = tokens, .with_bytes = true, .space_prefix = space_prefix, .remove_spaces = remove_spaces
    };
    assert_ok(create(&spec));
}

static void check_ids(const char *text, size_t n, bool special, bool bos, const int32_t *expected, size_t n_expected)
{
    int32_t *ids;
    size_t count;
    label("'%s'", text);
    assert_ok(qn_tokenizer_encode(tok, text, n, special, bos, &ids, &count));
    assert_int_equal(count, n_expected);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(ids[i], expected[i]);
    free(ids);
}

#define CHECK_IDS(text, special, ...)                                                                                  \
    check_ids(text, sizeof text - 1, special, false, (const int32_t[]){ __VA_ARGS__ },                                 \
              sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

TEST(merges_by_score)
{
    create_plain(1, 0);
    assert_string_equal(qn_tokenizer_name(tok), "llama");
    CHECK_IDS("ab", false, AB);
    CHECK_IDS("abc", false, ABC); /* first bc, which has the higher score, then a bc */
    CHECK_IDS("abcb", false, ABC, B);
    CHECK_IDS("a", false, A);
    CHECK_IDS(" a", false, SPACE_A);
    CHECK_IDS("   ", false, SPACE_2, SPACE); /* the leftmost of equal scores */
    CHECK_IDS(" " SP, false, SPACE_2);
    check_ids("", 0, false, false, NULL, 0);
    qn_tokenizer_free(tok);
}

/* An unused token is merged to, and divided again. */
TEST(unused_tokens_do_not_come_out)
{
    create_plain(1, 0);
    CHECK_IDS("aa", false, A, A);
    CHECK_IDS("aaa", false, AAA);
    CHECK_IDS("aaaa", false, A, A, A, A); /* two unused pairs: neither can be merged with the other */
    CHECK_IDS("aaaaa", false, A, A, AAA);
    qn_tokenizer_free(tok);
}

TEST(spaces)
{
    create_plain(0, 0);
    CHECK_IDS("abc", false, SPACE_ABC);
    CHECK_IDS(" abc", false, SPACE_2, ABC);
    /* A space is put after special tokens too, as llama.cpp does. */
    CHECK_IDS("a<t>b", false, SPACE_A, USER_T, SPACE, B);
    CHECK_IDS("<end>a<end><t>", true, CONTROL_END, SPACE_A, CONTROL_END, USER_T);
    check_ids("a", 1, false, true, (const int32_t[]){ BOS, SPACE_A }, 2);
    check_ids("", 0, false, true, (const int32_t[]){ BOS }, 1);
    int32_t *ids;
    size_t count;
    assert_ok(qn_tokenizer_encode_rest(tok, "a<end>a", 7, true, &ids, &count));
    assert_int_equal(count, 3);
    assert_int_equal(ids[0], A); /* a text that follows other text */
    assert_int_equal(ids[2], SPACE_A);
    free(ids);
    qn_tokenizer_free(tok);

    create_plain(2, 2);
    CHECK_IDS("  a   b ", false, SPACE_A, SPACE, B);
    CHECK_IDS(" a<t>  b ", false, SPACE_A, USER_T, SPACE_2, B);
    check_ids("   ", 3, false, false, NULL, 0);
    qn_tokenizer_free(tok);
}

TEST(bytes_and_unknown_characters)
{
    create_plain(1, 0);
    CHECK_IDS("\xc3\xa9", false, E_ACUTE);
    CHECK_IDS("x\xc3\xa8", false, BYTES + 'x', BYTES + 0xc3, BYTES + 0xa8);
    CHECK_IDS("\xc3"
              "a\xff\xe2\x96",
              false, BYTES + 0xc3, A, BYTES + 0xff, BYTES + 0xe2, BYTES + 0x96);
    CHECK_IDS("<0x41>", false, BYTES + '<', BYTES + '0', BYTES + 'x', BYTES + '4', BYTES + '1', BYTES + '>');
    const char *bytes;
    size_t length;
    assert_ok(qn_tokenizer_piece(tok, BYTES + 0xe2, &bytes, &length));
    assert_int_equal(length, 1);
    assert_memory_equal(bytes, "\xe2", 1);
    assert_ok(qn_tokenizer_piece(tok, ODD, &bytes, &length));
    assert_int_equal(length, 7); /* of type normal: no byte */
    assert_ok(qn_tokenizer_piece(tok, SPACE_ABC, &bytes, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(bytes, " abc", 4);
    qn_tokenizer_free(tok);

    /* Without byte tokens a run of unknown characters is one unknown token. */
    const struct spm_spec spec = { .tokens = tokens, .space_prefix = 1 };
    enum { FEWER = 256 };
    assert_ok(create(&spec));
    CHECK_IDS("axy\xc3\xa8"
              "bx",
              false, A - FEWER, UNK, B - FEWER, UNK);
    CHECK_IDS("x<t>y", false, UNK, USER_T - FEWER, UNK);
    qn_tokenizer_free(tok);
}

TEST(special_tokens)
{
    create_plain(1, 0);
    CHECK_IDS("<end>", true, CONTROL_END);
    CHECK_IDS("<end>", false, BYTES + '<', BYTES + 'e', BYTES + 'n', BYTES + 'd', BYTES + '>');
    CHECK_IDS("<t>", false, USER_T);
    CHECK_IDS("</s>", true, EOS);
    assert_int_equal(qn_tokenizer_bos(tok), BOS); /* without keys */
    assert_int_equal(qn_tokenizer_eos(tok), EOS);
    assert_true(qn_tokenizer_is_eog(tok, EOS));
    assert_true(qn_tokenizer_is_special(tok, UNK));
    assert_false(qn_tokenizer_is_special(tok, USER_T));
    assert_false(qn_tokenizer_is_special(tok, BYTES));
    bool *structural = calloc(qn_tokenizer_n_vocab(tok), 1);
    assert_non_null(structural);
    structural[USER_T] = true;
    const qn_text_span span = { 3, false };
    int32_t *ids;
    size_t count;
    assert_ok(qn_tokenizer_encode_spans(
        tok, &(qn_spanned_text){ .text = "<t>", .length = 3, .spans = &span, .n_spans = 1, .structural = structural },
        SIZE_MAX, &ids, &count));
    assert_int_equal(count, 3); /* what only the template may spell is text here */
    assert_int_equal(ids[0], BYTES + '<');
    free(ids);
    free(structural);
    qn_tokenizer_free(tok);
}

/* Grammars see a token's bytes: a space, and single bytes. */
TEST(bytes_for_grammars)
{
    qn_grammar_vocab *vocab;
    size_t length;
    create_plain(0, 0);
    assert_ok(qn_grammar_vocab_create(tok, NULL, 16, &vocab));
    const char *bytes = qn_grammar_vocab_bytes(vocab, SPACE_ABC, &length);
    assert_int_equal(length, 4);
    assert_memory_equal(bytes, " abc", 4);
    bytes = qn_grammar_vocab_bytes(vocab, BYTES + '{', &length);
    assert_int_equal(length, 1);
    assert_memory_equal(bytes, "{", 1);
    assert_null(qn_grammar_vocab_bytes(vocab, UNK, &length));
    assert_null(qn_grammar_vocab_bytes(vocab, EOS, &length));
    qn_grammar_vocab_free(vocab);
    qn_tokenizer_free(tok);
}

TEST(refusals)
{
    static const struct spm_token infinite[] = { { "a", 1, INFINITY }, { NULL, 0, 0 } },
                                  nan[] = { { "a", 1, NAN }, { NULL, 0, 0 } };
    static const struct {
        struct spm_spec spec;
        const char *says;
    } cases[] = {
        { { .tokens = tokens, .n_missing_scores = 1 }, "'tokenizer.ggml.scores' must be an array of 19 scores" },
        { { .tokens = infinite }, "tokenizer.ggml.scores" },
        { { .tokens = nan }, "tokenizer.ggml.scores" },
        { { .tokens = tokens, .unknown = 19 }, "'tokenizer.ggml.unknown_token_id' is 19" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        assert_int_equal(create(&cases[i].spec), QN_ERR_FORMAT);
        assert_null(tok);
        if (!strstr(qn_error_text(), cases[i].says))
            fail_msg("case %zu says: %s", i, qn_error_text());
    }
    /* Without scores all tokens are equal: the leftmost pair is merged first. */
    const struct spm_spec spec = { .tokens = tokens, .with_bytes = true, .no_scores = true, .space_prefix = 1 };
    assert_ok(create(&spec));
    CHECK_IDS("abc", false, ABC);
    CHECK_IDS("bca", false, BC, A);
    qn_tokenizer_free(tok);
}

static double seconds(const char *text, size_t n)
{
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        int32_t *ids;
        size_t count;
        const clock_t begin = clock();
        assert_ok(qn_tokenizer_encode(tok, text, n, true, false, &ids, &count));
        const double elapsed = (double)(clock() - begin) / CLOCKS_PER_SEC;
        best = elapsed < best ? elapsed : best;
        free(ids);
    }
    return best;
}

/* Ten times the text takes about ten times as long; a quadratic algorithm would take a hundred times as long. */
TEST(time_is_linear)
{
    static const char *const units[] = { "a", " ", "abc", "x", "\xff", "ab", " a", "aaa", "<t" };
    enum { LONG = 200000 };
    char *text = malloc(LONG);
    assert_non_null(text);
    create_plain(0, 0);
    for (size_t u = 0; u < COUNT(units); u++) {
        const size_t n = strlen(units[u]);
        label("'%s'", units[u]);
        for (size_t i = 0; i < LONG; i++)
            text[i] = units[u][i % n];
        assert_true(seconds(text, LONG) < 40 * seconds(text, LONG / 10) + 0.05);
    }
    qn_tokenizer_free(tok);
    free(text);
}

/* ---- Trained vocabularies ---- */

static size_t decode_hex(char *line)
{
    size_t n = 0;
    for (unsigned byte; line[2 * n] != ';'; n++) {
        assert_int_equal(sscanf(line + 2 * n, "%2x", &byte), 1);
        line[n] = (char)byte; /* not read again */
    }
    return n;
}

static void check_vocabulary(const char *name)
{
    char path[4096];
    qn_gguf *file;
    int n_texts = 0;
    snprintf(path, sizeof path, "%s/tests/golden/vocab_%s.gguf", QN_SOURCE_DIR, name);
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_tokenizer_create(file, &tok));
    qn_gguf_close(file);
    snprintf(path, sizeof path, "%s/tests/golden/vocab_%s.txt", QN_SOURCE_DIR, name);
    char *lines = read_file(path, NULL), *line = lines;
    for (char *end; *line; line = end + 1, n_texts++) {
        end = strchr(line, '\n');
        char *expected = strchr(line, ';');
        assert_true(end && expected && expected < end);
        label("%s, text %d", name, n_texts);
        const size_t n = decode_hex(line);
        int32_t *ids;
        size_t count;
        assert_ok(qn_tokenizer_encode(tok, line, n, false, false, &ids, &count));
        expected++;
        for (size_t i = 0; i < count; i++) {
            char *after;
            assert_int_equal(ids[i], strtol(expected, &after, 10));
            assert_true(after > expected && after <= end);
            expected = after;
        }
        assert_ptr_equal(expected, end);
        free(ids);
    }
    assert_true(n_texts >= 130);
    free(lines);
    qn_tokenizer_free(tok);
}

TEST(trained_vocabularies)
{
    static const char *const names[] = { "spm-plain",  "spm-no-prefix", "spm-no-bytes", "spm-spaces",
                                         "spm-across", "spm-unused",    "qwen2",        "qwen35",
                                         "smollm",     "llama-bpe",     "falcon3",      "deepseek-r1-qwen",
                                         "smaug-bpe",  "tekken",        "gpt-4o",       "llama4",
                                         "deepseek-v3" };
    for (size_t i = 0; i < COUNT(names); i++)
        check_vocabulary(names[i]);
}
