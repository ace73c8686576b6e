/* The tokeniser with a small generated vocabulary: splitting, merging, special tokens, form C, invalid UTF-8, malformed
 * vocabularies, and time. test_vocab_files.c tests real vocabularies. */
#include "helper_assert.h"
#include "helper_vocab.h"

#include "text/normalize.h"
#include "text/pretokenize.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <time.h>
#include <utf8proc.h>

static const char *const pres[] = { "qwen2",  "qwen35", "smollm",      "llama-bpe", "smaug-bpe",
                                    "tekken", "gpt-4o", "deepseek-v3", "gpt-2",     "default" };
enum { N_PRES = COUNT(pres) };

static const char *const merges[] = { "b c",   "a b",       "ab c",  "Ġ a", "a a",
                                      "aa aa", "Ġ Ġ",       "ĠĠ ĠĠ", "Ã ©", "\xc3\x8c \xc4\xa3",
                                      "1 2",   "aaaa aaaa", "l o",   NULL };
enum { BC = 256, AB, ABC, SPACE_A, AA, A4, SPACE_2, SPACE_4, E_ACUTE, ACUTE, N12, A8, LO, FIRST_ADDED };

static const struct added_token added[] = { { "<|endoftext|>", 3 }, { "<|im_start|>", 3 },
                                            { "<|im_end|>", 3 },    { "<t>", 4 },
                                            { "<t><t>", 4 },        { "<t>x", 3 },
                                            { "whole", 1 },         { NULL, 0 } };
enum { END_OF_TEXT = FIRST_ADDED, IM_START, IM_END, USER_T, USER_TT, CONTROL_TX, WHOLE, N_VOCAB };

static qn_status create(const struct vocab_spec *spec, qn_tokenizer **tok)
{
    struct file_bytes bytes = make_vocab(spec);
    qn_gguf *file;
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "test.gguf", &file));
    const qn_status status = qn_tokenizer_create(file, tok);
    qn_gguf_close(file);
    free(bytes.data); /* the tokeniser does not reference the file */
    return status;
}

static qn_tokenizer *tok; /* of the current test */

static void must_create(const struct vocab_spec *spec)
{
    assert_ok(create(spec, &tok));
}

static void create_plain(const char *pre)
{
    const struct vocab_spec spec = {
        .model = "gpt2", .pre = pre, .merges = merges, .added = added, .eos = IM_END, .bos = END_OF_TEXT
    };
    must_create(&spec);
}

static void check_ids(const char *text, size_t n, bool special, const int32_t *expected, size_t n_expected)
{
    int32_t *tokens;
    size_t count;
    assert_ok(qn_tokenizer_encode(tok, text, n, special, false, &tokens, &count));
    assert_non_null(tokens);
    assert_int_equal(count, n_expected);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(tokens[i], expected[i]);
    free(tokens);
}

#define CHECK_IDS(text, special, ...)                                                                                  \
    check_ids(text, sizeof text - 1, special, (const int32_t[]){ __VA_ARGS__ },                                        \
              sizeof((const int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t))

/* The concatenated pieces of a text's tokens; free with free(). */
static char *decode(const int32_t *tokens, size_t count, size_t *n)
{
    size_t capacity = 1, length;
    const char *bytes;
    for (size_t i = 0; i < count; i++) {
        assert_ok(qn_tokenizer_piece(tok, tokens[i], &bytes, &length));
        capacity += length;
    }
    char *out = malloc(capacity);
    assert_non_null(out);
    *n = 0;
    for (size_t i = 0; i < count; i++) {
        assert_ok(qn_tokenizer_piece(tok, tokens[i], &bytes, &length));
        memcpy(out + *n, bytes, length);
        *n += length;
    }
    return out;
}

static void check_round_trip(const char *text, size_t n, const char *expected, size_t n_expected)
{
    int32_t *tokens;
    size_t count, n_back;
    assert_ok(qn_tokenizer_encode(tok, text, n, false, false, &tokens, &count));
    char *back = decode(tokens, count, &n_back);
    assert_int_equal(n_back, n_expected);
    assert_memory_equal(back, expected, n_expected);
    free(back);
    free(tokens);
}

/* ---- Splitting ---- */

struct joined {
    char text[200];
    size_t n;
};

static qn_status join(void *user, const char *piece, size_t length)
{
    struct joined *j = user;
    assert_true(length > 0 && j->n + length + 1 < sizeof j->text);
    if (j->n)
        j->text[j->n++] = '|';
    memcpy(j->text + j->n, piece, length);
    j->n += length;
    j->text[j->n] = '\0';
    return QN_OK;
}

TEST(test_pretokenizers)
{
    static const struct {
        const char *pre, *text, *pieces;
    } cases[] = {
        { "gpt-2", "Hello  world's 123!?\n", "Hello| | world|'s| 123|!?|\n" },
        { "gpt-2", "I'D we'll", "I|'|D| we|'ll" },
        { "gpt-2", "a \n b", "a| \n| b" },
        { "smollm", "in 1999  x", "in| |1|9|9|9| | x" },
        { "smollm", "a  1", "a|  |1" }, /* the piece of spaces ends at the digit, so both belong to it */
        { "smollm", "\xd9\xa1\xc2\xbd", "\xd9\xa1|\xc2\xbd" },
        { "qwen2", "I'D (you)123\n\n x\t\ty", "I|'D| (|you|)|1|2|3|\n\n| x|\t|\ty" },
        { "qwen2", "'\xc5\xbft", "'\xc5\xbf|t" }, /* long s (U+017F) equals s without case */
        { "qwen2", "  \n  a...\r\n\r\nb", "  \n| | a|...\r\n\r\n|b" },
        { "qwen2", "ab\xcc\x81z", "ab|\xcc\x81z" }, /* qwen2: a combining mark begins a new piece */
        { "qwen35", "ab\xcc\x81z", "ab\xcc\x81z" }, /* qwen35: it counts as a letter */
        { "qwen35", " .\xcc\x81", " .|\xcc\x81" },
        { "qwen2", " .\xcc\x81", " .\xcc\x81" },
        { "llama-bpe", "x1234567", "x|123|456|7" },
        { "llama3", "12345", "123|45" },
        { "llama-v3", "12345", "123|45" },
        { "falcon3", "12345", "123|45" },
        { "smaug-bpe", "x1234567 I'D", "x|123|456|7| I|'D" },
        { "deepseek-r1-qwen", "I'D (you)123", "I|'D| (|you|)|1|2|3" },
        { "tekken", "HTTPServer iPhone's 12/\n", "HTTPServer| i|Phone|'s| |1|2|/\n" },
        { "tekken",
          "ABcd\xcc\x81"
          "E \xe4\xb8\xad"
          "A",
          "ABcd\xcc\x81|E| \xe4\xb8\xad|A" },
        { "gpt-4o", "HTTPServer iPhone's 1234 I'LL", "HTTPServer| i|Phone's| |123|4| I'LL" },
        { "llama4", "a/b//\n", "a|/b|//\n" },
        { "deepseek-v3",
          "x1234 \xe6\xbc\xa2\xe3\x82\xab"
          "a .b(c) +1",
          "x|123|4| |\xe6\xbc\xa2\xe3\x82\xab|a| .|b|(c|)| +|1" },
        { "default", "a=b, 12345 c", "a|=|b|,| |123|45| c" },
        { "qwen2", "a\xe1\xa0\x8e b", "a|\xe1\xa0\x8e| b" }, /* U+180E is not a space */
        { "gpt-2", "a\xc2\x85\xe3\x80\x80", "a|\xc2\x85\xe3\x80\x80" },
    };
    qn_matcher *matcher;
    assert_ok(qn_matcher_create(&matcher));
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_pretokenizer *pre;
        struct joined joined = { .n = 0 };
        assert_ok(qn_pretokenizer_create((qn_string){ cases[i].pre, strlen(cases[i].pre) }, &pre));
        assert_ok(qn_pretokenize(pre, matcher, cases[i].text, strlen(cases[i].text), join, &joined));
        assert_string_equal(joined.text, cases[i].pieces);
        qn_pretokenizer_free(pre);
    }
    qn_matcher_free(matcher);
}

/* ---- Merging ---- */

TEST(test_merging)
{
    create_plain("gpt-2");
    assert_string_equal(qn_tokenizer_name(tok), "gpt2/gpt-2");
    assert_int_equal(qn_tokenizer_n_vocab(tok), N_VOCAB);
    CHECK_IDS("abc", false, 'a', BC); /* the merge b c has a lower rank than a b */
    CHECK_IDS("ab", false, AB);
    CHECK_IDS("aaa", false, AA, 'a'); /* the leftmost of equal ranks */
    CHECK_IDS("aaaaaaa", false, A4, AA, 'a');
    CHECK_IDS("aaaaaaaab", false, A4, AA, 'a', AB); /* a b has a lower rank than a a */
    CHECK_IDS("a a", false, 'a', SPACE_A);
    CHECK_IDS("     a", false, SPACE_4, SPACE_A);
    CHECK_IDS("\xc3\xa9", false, E_ACUTE);
    CHECK_IDS("12", false, N12);
    check_ids("", 0, false, NULL, 0);
    CHECK_IDS("whole", false, 'w', 'h', 'o', 'l', 'e');
    qn_tokenizer_free(tok);

    create_plain("llama-bpe");
    CHECK_IDS("abc", false, ABC); /* ignore_merges: a piece that is a token becomes that token */
    CHECK_IDS("whole", false, WHOLE);
    CHECK_IDS("wholes", false, 'w', 'h', 'o', 'l', 'e', 's');
    qn_tokenizer_free(tok);

    create_plain("smollm");
    CHECK_IDS("12", false, '1', '2');
    qn_tokenizer_free(tok);
}

TEST(test_left_out_byte)
{
    const struct vocab_spec spec = { .model = "gpt2", .pre = "smollm", .omitted_byte = 0xf5 };
    must_create(&spec);
    CHECK_IDS("a\xf5"
              "b",
              false, 'a', 'b');
    qn_tokenizer_free(tok);
}

/* A merge whose result is a control token is ignored. */
TEST(test_merge_into_control)
{
    static const struct added_token control[] = { { "zz", 3 }, { "yy", 4 }, { NULL, 0 } };
    const struct vocab_spec spec = { .model = "gpt2", .pre = "gpt-2", .added = control, .bad_merge = "z z" };
    must_create(&spec);
    CHECK_IDS("zz", false, 'z', 'z');
    CHECK_IDS("zz", true, 256);
    qn_tokenizer_free(tok);
}

/* ---- Special tokens ---- */

TEST(test_special_tokens)
{
    create_plain("gpt-2");
    CHECK_IDS("a<|im_end|>b", true, 'a', IM_END, 'b');
    CHECK_IDS("<|im_end|><|im_start|>", true, IM_END, IM_START);
    CHECK_IDS("<<|im_end|", true, '<', '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|');
    CHECK_IDS("<|im_end|>", false, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    /* User-defined tokens are always parsed; the longest allowed match counts. */
    CHECK_IDS("<t>", false, USER_T);
    CHECK_IDS("<t><t><t>", false, USER_TT, USER_T);
    CHECK_IDS("<t>x", false, USER_T, 'x');
    CHECK_IDS("<t>x", true, CONTROL_TX);
    /* The text on each side of a special token is split separately: the space is at the end of a text. */
    CHECK_IDS("  <|im_end|>  a", true, SPACE_2, IM_END, ' ', SPACE_A);

    assert_int_equal(qn_tokenizer_find(tok, "<|im_end|>"), IM_END);
    assert_int_equal(qn_tokenizer_find(tok, "<t>"), USER_T);
    assert_int_equal(qn_tokenizer_find(tok, "whole"), -1);
    assert_int_equal(qn_tokenizer_find(tok, "no such"), -1);
    assert_int_equal(qn_tokenizer_find(tok, ""), -1);
    assert_true(qn_tokenizer_is_special(tok, IM_END));
    assert_false(qn_tokenizer_is_special(tok, USER_T));
    assert_false(qn_tokenizer_is_special(tok, 'a'));
    assert_false(qn_tokenizer_is_special(tok, -1));
    assert_false(qn_tokenizer_is_special(tok, N_VOCAB));
    assert_true(qn_tokenizer_is_eog(tok, IM_END));
    assert_true(qn_tokenizer_is_eog(tok, END_OF_TEXT)); /* by its name */
    assert_false(qn_tokenizer_is_eog(tok, IM_START));
    assert_false(qn_tokenizer_is_eog(tok, N_VOCAB));
    assert_int_equal(qn_tokenizer_bos(tok), END_OF_TEXT);
    assert_int_equal(qn_tokenizer_eos(tok), IM_END);

    const char *bytes;
    size_t length;
    assert_ok(qn_tokenizer_piece(tok, IM_END, &bytes, &length));
    assert_int_equal(length, 10);
    assert_memory_equal(bytes, "<|im_end|>", 10);
    assert_ok(qn_tokenizer_piece(tok, SPACE_A, &bytes, &length));
    assert_int_equal(length, 2);
    assert_memory_equal(bytes, " a", 2);
    assert_int_equal(qn_tokenizer_piece(tok, N_VOCAB, &bytes, &length), QN_ERR_INVALID);
    assert_int_equal(qn_tokenizer_piece(tok, -1, &bytes, &length), QN_ERR_INVALID);
    qn_tokenizer_free(tok);
}

TEST(test_bos)
{
    static const struct {
        const char *pre;
        int bos, key;
        bool added;
    } cases[] = { { "llama-bpe", END_OF_TEXT, 0, true },
                  { "llama-bpe", END_OF_TEXT, 1, false },
                  { "qwen2", END_OF_TEXT, 0, false },
                  { "qwen2", END_OF_TEXT, 2, true },
                  { "qwen2", 0, 2, false } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        const struct vocab_spec spec = { .model = "gpt2",
                                         .pre = cases[i].pre,
                                         .merges = merges,
                                         .added = added,
                                         .bos = cases[i].bos,
                                         .add_bos = cases[i].key };
        must_create(&spec);
        for (int asked = 0; asked < 2; asked++) {
            label("%s bos", asked ? "with" : "without");
            int32_t *tokens;
            size_t count;
            assert_ok(qn_tokenizer_encode(tok, "z", 1, false, asked, &tokens, &count));
            assert_int_equal(count, asked && cases[i].added ? 2 : 1);
            assert_int_equal(tokens[0], count == 2 ? END_OF_TEXT : 'z');
            free(tokens);
        }
        qn_tokenizer_free(tok);
    }
}

TEST(test_end_keys)
{
    const struct vocab_spec spec = { .model = "gpt2", .pre = "gpt-2", .eot = 'q' };
    must_create(&spec);
    assert_true(qn_tokenizer_is_eog(tok, 'q'));
    assert_false(qn_tokenizer_is_eog(tok, -1)); /* -1 is not a token */
    assert_int_equal(qn_tokenizer_eos(tok), -1);
    qn_tokenizer_free(tok);
}

/* Keys of quern's own, and what they must not be. */
TEST(test_own_keys)
{
    static const struct {
        const char *key;
        int64_t value;
        const char *text;
        size_t n_tokens;
    } cases[] = { { "quern.tokenizer.ignore_merges", 1, "whole", 1 },
                  { "quern.tokenizer.ignore_merges", 0, "whole", 5 },
                  { "quern.tokenizer.nfc", 1, "e\u0301", 1 },
                  { "quern.tokenizer.nfc", 0, "e\u0301", 2 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct vocab_spec spec = { .model = "gpt2",
                                         .pre = "gpt-2",
                                         .merges = merges,
                                         .added = added,
                                         .id_key = cases[i].key,
                                         .id_type = QN_GGUF_BOOL,
                                         .id_bytes = 1,
                                         .id_value = cases[i].value };
        int32_t *tokens;
        size_t n;
        label("%s %d", cases[i].key, (int)cases[i].value);
        must_create(&spec);
        assert_ok(qn_tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), false, false, &tokens, &n));
        assert_int_equal(n, cases[i].n_tokens);
        free(tokens);
        qn_tokenizer_free(tok);
    }
    static const char *const arrays[] = { "quern.tokenizer.lstrip_token_ids", "quern.tokenizer.rstrip_token_ids" };
    for (size_t i = 0; i < COUNT(arrays); i++) {
        const struct vocab_spec spec = {
            .model = "gpt2", .pre = "gpt-2", .id_key = arrays[i], .id_type = QN_GGUF_U32, .id_bytes = 4
        };
        assert_fails(create(&spec, &tok), QN_ERR_FORMAT, arrays[i]);
    }
}

/* A special token with this name, of a kind, beside up to two others; whether it ends generation. */
static bool ends(const char *name, int kind, const char *with, const char *and)
{
    const struct added_token tokens[] = { { name, kind }, { with, 3 }, { with ? and : NULL, 3 }, { NULL, 0 } };
    const struct vocab_spec spec = { .model = "gpt2", .pre = "gpt-2", .added = tokens };
    must_create(&spec);
    const bool is_end = qn_tokenizer_is_eog(tok, 256);
    qn_tokenizer_free(tok);
    return is_end;
}

TEST(test_end_names)
{
    static const char *const names[] = { "<|eot_id|>",
                                         "<|im_end|>",
                                         "<|end|>",
                                         "<|return|>",
                                         "<|call|>",
                                         "<|flush|>",
                                         "<|calls|>",
                                         "<end_of_turn>",
                                         "<|endoftext|>",
                                         "</s>",
                                         "<|eom_id|>",
                                         "<EOT>",
                                         "_<EOT>",
                                         "[EOT]",
                                         "[EOS]",
                                         "<|end_of_text|>",
                                         "<end_of_utterance>",
                                         "<eos>",
                                         "<turn|>",
                                         "<|tool_response>",
                                         "<｜end▁of▁sentence｜>",
                                         "[e~[",
                                         "<|fim_pad|>",
                                         "<fim-pad>",
                                         "<fim_pad>",
                                         "<PAD>",
                                         "[PAD]",
                                         "<|fim_repo|>",
                                         "<|repo_name|>",
                                         "<fim-repo>",
                                         "<REPO>",
                                         "<reponame>",
                                         "<|file_sep|>" };
    static const char *const others[] = { "<|im_start|>", "<|fim_prefix|>", "<|fim_middle|>", "<tool_call>",
                                          "<|im_end|",    "im_end",         "<|IM_END|>",     "<|endoftext|>x" };
    for (size_t i = 0; i < COUNT(names); i++) {
        label("%s", names[i]);
        assert_true(ends(names[i], 3, NULL, NULL));
        assert_true(ends(names[i], 4, NULL, NULL));
        assert_false(ends(names[i], 1, NULL, NULL)); /* text that is spelled so */
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        label("%s", others[i]);
        assert_false(ends(others[i], 3, NULL, NULL));
    }
    label("%s", "where other tokens give a name another meaning");
    assert_false(ends("<|end|>", 3, "<|return|>", "<|call|>"));
    assert_false(ends("<|end|>", 3, "<|calls|>", "<|flush|>"));
    assert_true(ends("<|end|>", 3, "<|return|>", "<|flush|>"));
    assert_true(ends("<|call|>", 3, "<|return|>", "<|end|>"));
    assert_false(ends("</s>", 3, "<|tool_response>", NULL));
}

/* ---- Form C and other bytes ---- */

TEST(test_form_c)
{
    static const struct {
        const char *text, *normal;
    } cases[] = {
        { "cafe\xcc\x81", "caf\xc3\xa9" },
        { "e\xcc\x81\xcc\xa3", "\xe1\xba\xb9\xcc\x81" },            /* e, acute, dot below: the dot is sorted first */
        { "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c" }, /* Hangul */
        { "\xe2\x84\xab", "\xc3\x85" },                             /* Angstrom sign */
        { "\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc" },             /* excluded from composition */
        { "\xcc\x81z", "\xcc\x81z" },                               /* nothing to compose with */
        { "\xff"
          "e\xcc\x81\xfe",
          "\xff\xc3\xa9\xfe" }, /* between invalid bytes */
        { "e\xcc", "e\xcc" },   /* an incomplete mark */
        { "e<|im_end|>\xcc\x81", "e<|im_end|>\xcc\x81" },
        { "e<t>\xcc\x81", "e<t>\xcc\x81" }, /* a token between letter and mark */
    };
    for (size_t p = 0; p < N_PRES; p++) {
        label("%s", pres[p]);
        create_plain(pres[p]);
        for (size_t i = 0; i < COUNT(cases); i++) {
            label("case %zu", i);
            const char *expected = strncmp(pres[p], "qwen", 4) ? cases[i].text : cases[i].normal;
            check_round_trip(cases[i].text, strlen(cases[i].text), expected, strlen(expected));
        }
        qn_tokenizer_free(tok);
    }
}

/* Many combining marks, sorted by counting sort in quern and by bubble sort here. */
TEST(test_marks_in_order)
{
    /* Combining classes 230, 220, 230, 202, 1, 216; none composes with x. */
    static const char *const marks[] = { "\xcc\x81", "\xcc\xa4", "\xcd\x86", "\xcc\xa8", "\xcc\xb4", "\xcc\x9b" };
    static const int classes[] = { 230, 220, 230, 202, 1, 216 };
    enum { N = 300 };
    int kinds[N];
    char text[1 + 2 * N], sorted[1 + 2 * N];
    srand(3);
    text[0] = sorted[0] = 'x';
    for (int i = 0; i < N; i++) {
        kinds[i] = rand() % 6;
        memcpy(text + 1 + 2 * i, marks[kinds[i]], 2);
    }
    for (int i = 1; i < N; i++)
        for (int j = i; j && classes[kinds[j - 1]] > classes[kinds[j]]; j--) {
            const int swap = kinds[j];
            kinds[j] = kinds[j - 1];
            kinds[j - 1] = swap;
        }
    for (int i = 0; i < N; i++)
        memcpy(sorted + 1 + 2 * i, marks[kinds[i]], 2);
    qn_nfc_scratch scratch = { 0 };
    const char *out;
    size_t length;
    assert_ok(qn_nfc(&scratch, text, sizeof text, &out, &length));
    assert_int_equal(length, sizeof sorted);
    assert_memory_equal(out, sorted, length);
    qn_nfc_scratch_free(&scratch);
}

TEST(test_random_bytes)
{
    static const char *const bits[] = { " ",
                                        "  ",
                                        "\n",
                                        "a",
                                        "aa",
                                        "abc",
                                        "1",
                                        "12",
                                        ".",
                                        "'s",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "\xf0\x9f\x99\x82",
                                        "\xff",
                                        "\x80",
                                        "\xe4\xb8",
                                        "\xf0\x9f",
                                        "\xed\xa0\x80",
                                        "<t>",
                                        "<|im_end|>",
                                        "<|im_",
                                        "\r\n" };
    srand(5);
    for (size_t p = 0; p < N_PRES; p++) {
        label("%s", pres[p]);
        create_plain(pres[p]);
        for (int round = 0; round < 3000; round++) {
            label("round %d", round);
            char text[400];
            size_t n = 0;
            const int n_bits = rand() % 40;
            for (int i = 0; i < n_bits; i++)
                if (round % 2) {
                    text[n++] = (char)(rand() % 256);
                } else {
                    const char *bit = bits[(size_t)rand() % (COUNT(bits))];
                    memcpy(text + n, bit, strlen(bit));
                    n += strlen(bit);
                }
            if (!strncmp(pres[p], "qwen", 4)) /* no marks, which would be normalised: test_form_c */
                for (size_t i = 0; i < n; i++)
                    if (round % 2)
                        text[i] = (char)((unsigned char)text[i] & 0xbf);
            check_round_trip(text, n, text, n);
        }
        qn_tokenizer_free(tok);
    }
}

/* ---- The fewest tokens of a text ---- */

static size_t utf8_bytes(int32_t c)
{
    uint8_t bytes[4];
    return (size_t)utf8proc_encode_char(c, bytes);
}

/* Form C is a sequence of characters c, each composed of the decomposition D(c) of characters of the text. If each d of
 * D(c) gets an equal share of c's bytes, its share is at least the smallest that any c gives it. A character x of the
 * text thus contributes at least the smallest shares of D(x): its own bytes are less than five times as many. */
TEST(test_form_c_shrinks_at_most_to_a_fifth)
{
    enum { N_CODES = 0x110000, LONGEST_DECOMPOSITION = 18 };
    static double shares[N_CODES];
    int32_t parts[LONGEST_DECOMPOSITION];
    double most = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t c = 1; c < N_CODES; c++) {
            if (c >= 0xd800 && c < 0xe000)
                continue;
            const utf8proc_ssize_t n =
                utf8proc_decompose_char(c, parts, LONGEST_DECOMPOSITION, UTF8PROC_DECOMPOSE, NULL);
            double least = 0;
            assert_in_range(n, 1, LONGEST_DECOMPOSITION);
            for (utf8proc_ssize_t i = 0; i < n; i++) {
                const double share = (double)utf8_bytes(c) / (double)n;
                if (!pass && (shares[parts[i]] == 0 || share < shares[parts[i]]))
                    shares[parts[i]] = share;
                least += shares[parts[i]];
            }
            if (pass && (double)utf8_bytes(c) / least > most)
                most = (double)utf8_bytes(c) / least;
        }
    assert_true(most > 4 && most < 5);
}

/* Of texts of long tokens, and of characters that form C makes short. */
TEST(test_least_tokens)
{
    static const char *const bits[] = { "\u2126", "\u0314",   "\u0342",        "\u0345", "\u212a",  "\u1112", "\u1161",
                                        "\u11ab", "aaaaaaaa", "<|endoftext|>", "<t><t>", "e\u0301", " ",      "\xff" };
    srand(9);
    for (size_t p = 0; p < N_PRES; p++) {
        create_plain(pres[p]);
        assert_int_equal(qn_tokenizer_least_tokens(tok, 0), 0);
        assert_int_equal(qn_tokenizer_least_tokens(tok, 1), 1);
        assert_true(qn_tokenizer_least_tokens(tok, 10000) >= 10000 / (5 * (sizeof "<|endoftext|>" - 1)));
        for (int round = 0; round < 500; round++) {
            label("%s, round %d", pres[p], round);
            char text[400];
            size_t n = 0, count;
            int32_t *tokens;
            const size_t n_bits = (size_t)rand() % 25, n_kinds = 1 + (size_t)rand() % COUNT(bits),
                         first = (size_t)rand();
            for (size_t i = 0; i < n_bits; i++) {
                const char *bit = bits[(first + (size_t)rand() % n_kinds) % COUNT(bits)];
                memcpy(text + n, bit, strlen(bit));
                n += strlen(bit);
            }
            assert_ok(qn_tokenizer_encode(tok, text, n, true, false, &tokens, &count));
            assert_true(qn_tokenizer_least_tokens(tok, n) <= count);
            free(tokens);
        }
        qn_tokenizer_free(tok);
    }
}

/* ---- Unusual vocabularies ---- */

/* Tokens with the same text: encoding uses the first; all can be decoded. */
TEST(test_repeated_tokens)
{
    static const struct added_token more[] = { { "<t>", 3 },  { "<t>", 3 },   { "~mine", 4 }, { "~mine", 4 },
                                               { "<t>u", 3 }, { "<end>", 1 }, { "<end>", 3 }, { NULL, 0 } };
    enum { T = 256, T_AGAIN, MINE, MINE_AGAIN, TU, END_NORMAL, END_CONTROL, A_AGAIN };
    const struct vocab_spec spec = { .model = "gpt2", .added = more, .duplicate_token = "a" };
    const struct vocab_spec one = { .model = "gpt2", .duplicate_token = "a" };
    const char *bytes;
    size_t length;
    assert_ok(create(&one, &tok));
    assert_string_equal(qn_tokenizer_note(tok), "tokens 97 and 256 are both 'a': the first is used");
    qn_tokenizer_free(tok);
    must_create(&spec);
    assert_string_equal(
        qn_tokenizer_note(tok),
        "tokens 256 and 257 are both '<t>': the first is used; 3 more tokens are spelled like earlier ones");
    CHECK_IDS("ba<t>a<t>u<t>", true, 'b', 'a', T, 'a', TU, T);
    CHECK_IDS("~mine<end>", true, MINE, END_CONTROL);
    assert_int_equal(qn_tokenizer_find(tok, "<t>"), T);
    assert_int_equal(qn_tokenizer_find(tok, "<end>"), END_CONTROL);
    assert_int_equal(qn_tokenizer_find(tok, "<t>u<t>"), -1);
    assert_int_equal(qn_tokenizer_find(tok, "<"), -1);
    assert_ok(qn_tokenizer_piece(tok, A_AGAIN, &bytes, &length));
    assert_true(length == 1 && *bytes == 'a');
    assert_ok(qn_tokenizer_piece(tok, MINE_AGAIN, &bytes, &length));
    assert_true(length == 5 && !memcmp(bytes, "~mine", 5));
    assert_true(qn_tokenizer_is_special(tok, T_AGAIN) && !qn_tokenizer_is_special(tok, END_NORMAL));
    qn_tokenizer_free(tok);
    create_plain("gpt-2");
    assert_null(qn_tokenizer_note(tok));
    qn_tokenizer_free(tok);
}

/* Special token ids that mean no token: -1 as converters write it, signed or unsigned, of any width. */
TEST(test_ids_of_none)
{
    static const struct {
        qn_gguf_type type;
        size_t bytes;
        int64_t value;
        qn_status status;
    } cases[] = {
        { QN_GGUF_I8, 1, -1, QN_OK },
        { QN_GGUF_I16, 2, -1, QN_OK },
        { QN_GGUF_I32, 4, -1, QN_OK },
        { QN_GGUF_I64, 8, -1, QN_OK },
        { QN_GGUF_U32, 4, UINT32_MAX, QN_OK },
        { QN_GGUF_U64, 8, UINT32_MAX, QN_OK },
        { QN_GGUF_U64, 8, -1, QN_OK },
        { QN_GGUF_I32, 4, -2, QN_ERR_FORMAT },
        { QN_GGUF_U32, 4, UINT32_MAX - 1, QN_ERR_FORMAT },
        { QN_GGUF_U16, 2, UINT16_MAX, QN_ERR_FORMAT },
        { QN_GGUF_I64, 8, UINT32_MAX, QN_ERR_FORMAT },
    };
    static const char *const keys[] = { "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    for (size_t k = 0; k < COUNT(keys); k++)
        for (size_t i = 0; i < COUNT(cases); i++) {
            label("%s, case %zu", keys[k], i);
            const struct vocab_spec spec = { .model = "gpt2",
                                             .add_bos = 2,
                                             .id_key = keys[k],
                                             .id_type = cases[i].type,
                                             .id_bytes = cases[i].bytes,
                                             .id_value = cases[i].value };
            const qn_status status = create(&spec, &tok);
            if (status != cases[i].status)
                fail_msg("%s, %s", qn_status_name(status), status ? qn_error_text() : "");
            if (status != QN_OK) {
                assert_text(keys[k]);
                continue;
            }
            assert_int_equal(qn_tokenizer_bos(tok), -1);
            assert_int_equal(qn_tokenizer_eos(tok), -1);
            assert_false(qn_tokenizer_is_eog(tok, -1));
            int32_t *tokens;
            size_t count;
            assert_ok(qn_tokenizer_encode(tok, "a", 1, false, true, &tokens, &count));
            assert_int_equal(count, 1);
            free(tokens);
            qn_tokenizer_free(tok);
        }
}

/* ---- Malformed vocabularies ---- */

TEST(test_refusals)
{
    const struct {
        struct vocab_spec spec;
        qn_status status;
        const char *says;
    } cases[] = {
        { { .pre = "qwen2" }, QN_ERR_UNSUPPORTED, "no tokeniser" },
        { { .model = "no_vocab" }, QN_ERR_UNSUPPORTED, "no_vocab" },
        { { .model = "bert" }, QN_ERR_UNSUPPORTED, "'bert'" },
        { { .model = "gpt2", .pre = "poro-chat" }, QN_ERR_UNSUPPORTED, "'poro-chat'" },
        { { .model = "gpt2", .pre = "x" }, QN_ERR_UNSUPPORTED, "deepseek-r1-qwen, qwen35, smollm, llama-bpe, llama3" },
        { { .model = "gpt2", .no_tokens = true }, QN_ERR_FORMAT, "tokenizer.ggml.tokens" },
        { { .model = "gpt2", .tokens_are_numbers = true }, QN_ERR_FORMAT, "tokenizer.ggml.tokens" },
        { { .model = "gpt2", .no_merges = true }, QN_ERR_FORMAT, "tokenizer.ggml.merges" },
        { { .model = "gpt2", .n_missing_types = 1 }, QN_ERR_FORMAT, "token_type" },
        { { .model = "gpt2", .added = (const struct added_token[]){ { "x y", 9 }, { NULL, 0 } } },
          QN_ERR_FORMAT,
          "type 9" },
        { { .model = "gpt2", .bad_merge = "ab" }, QN_ERR_FORMAT, "merge 0 is 'ab'" },
        { { .model = "gpt2", .bad_merge = " a" }, QN_ERR_FORMAT, "merge 0" },
        { { .model = "gpt2", .bad_merge = "a " }, QN_ERR_FORMAT, "merge 0" },
        { { .model = "gpt2", .bad_merge = "" }, QN_ERR_FORMAT, "merge 0" },
        { { .model = "gpt2", .bad_merge = "a b c" }, QN_ERR_FORMAT, "merge 0" },
        { { .model = "gpt2", .bad_merge = "a b" }, QN_ERR_FORMAT, "whole is not in the vocabulary" },
        { { .model = "gpt2", .bad_merge = "a xx" }, QN_ERR_FORMAT, "right part" },
        { { .model = "gpt2", .bos = 256 }, QN_ERR_FORMAT, "bos_token_id" },
        { { .model = "gpt2", .eos = 999999 }, QN_ERR_FORMAT, "999999" },
        { { .model = "gpt2", .eot = -2 }, QN_ERR_FORMAT, "eot_token_id" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(create(&cases[i].spec, &tok), cases[i].status);
        assert_null(tok);
        if (!strstr(qn_error_text(), cases[i].says))
            fail_msg("case %zu says: %s", i, qn_error_text());
    }
    /* A file without tokenizer.ggml.pre. */
    const struct vocab_spec unnamed = { .model = "gpt2" };
    assert_ok(create(&unnamed, &tok));
    assert_string_equal(qn_tokenizer_name(tok), "gpt2/default");
    qn_tokenizer_free(tok);
}

/* ---- Time ---- */

static double seconds(const char *text, size_t n)
{
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        int32_t *tokens;
        size_t count;
        const clock_t begin = clock();
        assert_ok(qn_tokenizer_encode(tok, text, n, true, false, &tokens, &count));
        const double elapsed = (double)(clock() - begin) / CLOCKS_PER_SEC;
        best = elapsed < best ? elapsed : best;
        free(tokens);
    }
    return best;
}

/* Runs of one character or one pair. Ten times the text takes about ten times as long, somewhat more because of n log n
 * and cache misses; a quadratic algorithm would take a hundred times as long. */
TEST(test_linear)
{
    static const char *const units[] = {
        "a",         " ",    "\n", "1",  ".",           "ab", " \n", "\xcc\x81", "\xcc\x81\xcc\xa4",
        "e\xcc\x81", "\xff", "<",  "<t", "\xe4\xb8\xad"
    };
    enum { LONG = 100000 };
    char *text = malloc(LONG);
    assert_non_null(text);
    for (size_t p = 0; p < N_PRES; p++) {
        label("%s", pres[p]);
        create_plain(pres[p]);
        for (size_t u = 0; u < COUNT(units); u++) {
            const size_t n_unit = strlen(units[u]), n = LONG / n_unit / 10 * 10 * n_unit;
            for (size_t i = 0; i < n; i += n_unit)
                memcpy(text + i, units[u], n_unit);
            const double tenth = seconds(text, n / 10), whole = seconds(text, n);
            if (whole > 40 * (tenth + 1e-3))
                fail_msg("unit %zu: %g s for a tenth, %g s for all", u, tenth, whole);
        }
        qn_tokenizer_free(tok);
    }
    free(text);
}

/* ---- Threads ---- */

struct job {
    const qn_tokenizer *tok;
    uint64_t sum;
};

static void *encode_often(void *user)
{
    static const char text[] = "abc aaaa 12 cafe\xcc\x81 <|im_end|>\n\n  x\xff";
    struct job *job = user;
    for (int round = 0; round < 200; round++) {
        int32_t *tokens;
        size_t count;
        if (qn_tokenizer_encode(job->tok, text, sizeof text - 1, true, false, &tokens, &count) != QN_OK)
            return NULL;
        for (size_t i = 0; i < count; i++)
            job->sum = job->sum * 31 + (uint64_t)tokens[i];
        free(tokens);
    }
    return NULL;
}

TEST(test_threads)
{
    create_plain("qwen2");
    struct job jobs[4], alone = { tok, 0 };
    pthread_t threads[4];
    encode_often(&alone);
    assert_true(alone.sum != 0);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){ tok, 0 };
        assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(jobs[i].sum == alone.sum);
    }
    qn_tokenizer_free(tok);
}
