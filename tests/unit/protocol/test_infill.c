/* Prompts with a gap: the tokens around the texts before and after it, texts of other files, and what is cut. */
#include "helper_files.h"
#include "helper_vocab.h"

#include "helper_answers.h"

#include <unistd.h>

#define INFILL "/infill"
#define TEXT "/v1/completions"

/* Ids after those of bytes. */
enum { END = 256, PREFIX, SUFFIX, MIDDLE, FILES, REPOSITORY };

static const struct added_token with_files[] = { { "<|end|>", 3 },
                                                 { "<|fim_prefix|>", 3 },
                                                 { "<|fim_suffix|>", 3 },
                                                 { "<|fim_middle|>", 3 },
                                                 { "<|file_sep|>", 3 },
                                                 { "<|repo_name|>", 3 },
                                                 { NULL, 0 } };
static const struct added_token by_keys[] = {
    { "<|end|>", 3 }, { "<p>", 3 }, { "<fim_suffix>", 3 }, { "<MID>", 3 }, { NULL, 0 }
};

static void load(const struct added_token *added, int add_bos, const char *key, int64_t id)
{
    const struct vocab_spec spec = { .model = "gpt2",
                                     .pre = "gpt-2",
                                     .added = added,
                                     .bos = END,
                                     .eos = END,
                                     .add_bos = add_bos,
                                     .id_key = key,
                                     .id_type = QN_GGUF_U32,
                                     .id_bytes = 4,
                                     .id_value = id };
    struct file_bytes bytes = make_vocab(&spec);
    char path[] = "/tmp/qn-infill-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    write_file(path, bytes.data, bytes.n);
    free(bytes.data);
    qn_model_free(model);
    model = create_model(path, &CPU_MODEL(.vocab_only = true));
    unlink(path);
    served.model = model;
    served.n_ctx = 100;
}

/* Compares a prompt. In `expected` a letter is its token, a digit an id from END on. */
static void check_prompt(const char *path, const char *body, const char *expected)
{
    label("%s", body);
    qn_exchange *found = must_take(path, quoted(body));
    assert_int_equal(found->requests->n_tokens, strlen(expected));
    for (size_t i = 0; i < found->requests->n_tokens; i++) {
        const char c = expected[i];
        assert_int_equal(found->requests->tokens[i], c >= '0' && c <= '9' ? END + c - '0' : c);
    }
    qn_exchange_free(found);
}

TEST(a_gap_has_its_tokens)
{
    load(with_files, 1, NULL, 0);
    check_prompt(INFILL, "{'input_prefix':'ab','input_suffix':'cd'}", "1ab2cd3");
    check_prompt(INFILL, "{'input_prefix':'ab','input_suffix':'cd','prompt':'x'}", "1abx2cd3");
    check_prompt(INFILL, "{'input_prefix':'','input_suffix':'','prompt':null}", "123");
    check_prompt(INFILL, "{'input_prefix':'<|end|>','input_suffix':''}", "1<|end|>23");
    check_prompt(INFILL,
                 "{'input_prefix':'a','input_suffix':'b','input_extra':[{'filename':'f','text':'x'},{'text':'y'}]}",
                 "5myproject\n4f\nx4tmp\ny4filename\n1a2b3");
    check_prompt(TEXT, "{'prompt':'ab','suffix':'c'}", "1ab2c3");
    check_prompt(TEXT, "{'prompt':[97],'suffix':'c'}", "1a2c3");
    check_prompt(TEXT, "{'prompt':'ab','suffix':''}", "ab");
    check_prompt("/api/generate", "{'model':'m','prompt':'ab','suffix':'c'}", "1ab2c3");
    check_prompt("/api/generate", "{'model':'m','suffix':'c'}", "12c3");
    load(with_files, 2, NULL, 0);
    check_prompt(INFILL, "{'input_prefix':'a','input_suffix':'b'}", "01a2b3");
}

/* Some files name the tokens by keys; without a token for files their texts are separated by words. */
TEST(tokens_are_found_by_keys_or_names)
{
    load(by_keys, 1, "tokenizer.ggml.fim_pre_token_id", PREFIX);
    check_prompt(INFILL, "{'input_prefix':'a','input_suffix':'b','input_extra':[{'text':'x'}]}",
                 "\n\n--- snippet ---\n\nx1a2b3");
    load(by_keys, 1, NULL, 0);
    assert_null(qn_model_get_infill(model));
    static const char *const bodies[][2] = { { INFILL, "{'input_prefix':'a','input_suffix':'b'}" },
                                             { TEXT, "{'prompt':'a','suffix':'b'}" } };
    for (size_t i = 0; i < 2; i++) {
        qn_refusal refusal = { 0 };
        assert_null(exchange_of(bodies[i][0], quoted(bodies[i][1]), NULL, &refusal));
        assert_int_equal(refusal.status, 501);
        assert_contains(refusal.message, "cannot fill gaps");
    }
}

/* A body with texts of these lengths. */
static qn_exchange *with_lengths(size_t prefix, size_t suffix, size_t file, const char *fields)
{
    static char body[4000];
    qn_text_buffer text = QN_APPEND_TO(body);
    qn_append(&text, "{\"input_extra\":[{\"text\":\"");
    for (size_t i = 0; i < file; i++)
        qn_append(&text, "f");
    qn_append(&text, "\"}],\"input_prefix\":\"P");
    for (size_t i = 1; i < prefix; i++)
        qn_append(&text, "p");
    qn_append(&text, "\",\"input_suffix\":\"");
    for (size_t i = 0; i + 1 < suffix; i++)
        qn_append(&text, "s");
    qn_append(&text, "S\"%s}", fields);
    return must_take(INFILL, body);
}

static size_t count(const qn_exchange *e, qn_token token)
{
    size_t n = 0;
    for (size_t i = 0; i < e->requests->n_tokens; i++)
        n += e->requests->tokens[i] == token;
    return n;
}

/* A context of 100 keeps 25 tokens for an answer without a limit, 3 are those around the gap. */
TEST(texts_are_cut_to_the_context)
{
    load(by_keys, 1, "tokenizer.ggml.fim_pre_token_id", PREFIX);
    qn_exchange *e = with_lengths(500, 500, 500, "");
    assert_int_equal(e->requests->n_tokens, 75);
    assert_int_equal(count(e, 'p'), 54); /* the end of the text before the gap */
    assert_int_equal(count(e, 'P'), 0);
    assert_int_equal(count(e, 's'), 18); /* the beginning of the one after it */
    assert_int_equal(count(e, 'f'), 0);
    qn_exchange_free(e);
    e = with_lengths(10, 500, 500, "");
    assert_int_equal(e->requests->n_tokens, 75);
    assert_int_equal(count(e, 'p') + count(e, 'P'), 10);
    assert_int_equal(count(e, 's'), 62);
    qn_exchange_free(e);
    e = with_lengths(10, 10, 500, ",\"n_predict\":10");
    assert_int_equal(e->requests->n_tokens, 90);
    assert_int_equal(count(e, 'f'), 67);
    assert_int_equal(count(e, 'P'), 1);
    assert_int_equal(count(e, 'S'), 1);
    qn_exchange_free(e);
    e = with_lengths(500, 10, 0, ",\"n_predict\":1000");
    assert_int_equal(e->requests->n_tokens, 50);
    qn_exchange_free(e);
    char body[300] = "{\"suffix\":\"b\",\"prompt\":\"", *at = body + strlen(body);
    memset(at, 'a', 150);
    strcpy(at + 150, "\"}");
    assert_refused(TEXT, body, NULL, "", "154 tokens");
}

TEST(wrong_bodies_are_refused)
{
    load(with_files, 1, NULL, 0);
    static const struct {
        const char *path, *body, *param;
    } wrong[] = {
        { INFILL, "{}", "input_prefix" },
        { INFILL, "{'input_prefix':'a'}", "input_suffix" },
        { INFILL, "{'input_prefix':5,'input_suffix':'b'}", "input_prefix" },
        { INFILL, "{'input_prefix':'a','input_suffix':[]}", "input_suffix" },
        { INFILL, "{'input_prefix':'a','input_suffix':'b','prompt':[1]}", "prompt" },
        { INFILL, "{'input_prefix':'a','input_suffix':'b','input_extra':{}}", "input_extra" },
        { INFILL, "{'input_prefix':'a','input_suffix':'b','input_extra':[5]}", "input_extra" },
        { INFILL, "{'input_prefix':'a','input_suffix':'b','input_extra':[{'filename':'x'}]}", "input_extra" },
        { INFILL, "{'input_prefix':'a','input_suffix':'b','input_extra':[{'filename':5,'text':''}]}", "input_extra" },
        { TEXT, "{'prompt':'a','suffix':5}", "suffix" },
        { TEXT, "{'prompt':'a','suffix':'b','echo':true}", "suffix" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(wrong[i].path, quoted(wrong[i].body), NULL, wrong[i].param, "");
}

/* The answer is that of /completion. */
TEST(answers_are_those_of_completion)
{
    load(with_files, 1, NULL, 0);
    open_exchange(INFILL, quoted("{'input_prefix':'a','input_suffix':'b'}"));
    text(0, "c");
    finish(0, QN_FINISH_STOP, false);
    ends_with(200);
    assert_contains(out.data, quoted("{'index':0,'content':'c',"));
    assert_contains(out.data, quoted("'prompt':'<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>'"));
    close_exchange();
}

TEST_GROUP(load_vocab, free_vocab)
