/* Vocabularies of draft models: which differences are refused, and that the first one is named. */
#include "helper_create.h"

#include "base/memory.h"
#include "engine/spec/draft_file.h"
#include "text/vocab.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST = 8 };

struct vocab {
    const char *tokens[MOST];
    int32_t types[MOST];
    size_t n;
    const char *pre;
    uint32_t bos, eos;
};

static const struct vocab usual = { .tokens = { "<s>", "</s>", "c", "a", "b", "ab" },
                                    .types = { QN_TOKEN_CONTROL, QN_TOKEN_CONTROL, QN_TOKEN_NORMAL, QN_TOKEN_NORMAL,
                                               QN_TOKEN_NORMAL, QN_TOKEN_NORMAL },
                                    .n = 6,
                                    .pre = "gpt-2",
                                    .bos = 0,
                                    .eos = 1 };

static qn_tokenizer *create(const struct vocab *v)
{
    char path[64];
    qn_string tokens[MOST], merge = { "a b", 3 };
    qn_gguf_writer *w;
    qn_gguf *file;
    qn_tokenizer *tok;
    for (size_t i = 0; i < v->n; i++)
        tokens[i] = (qn_string){ v->tokens[i], strlen(v->tokens[i]) };
    snprintf(path, sizeof path, "/tmp/quern-draft-vocab-%d.gguf", (int)getpid());
    assert_ok(qn_gguf_writer_create(path, &w));
    assert_ok(qn_gguf_writer_add_string(w, "tokenizer.ggml.model", "gpt2"));
    assert_ok(qn_gguf_writer_add_string(w, "tokenizer.ggml.pre", v->pre));
    assert_ok(qn_gguf_writer_add_strings(w, "tokenizer.ggml.tokens", tokens, v->n));
    assert_ok(qn_gguf_writer_add_i32s(w, "tokenizer.ggml.token_type", v->types, v->n));
    assert_ok(qn_gguf_writer_add_strings(w, "tokenizer.ggml.merges", &merge, 1));
    assert_ok(qn_gguf_writer_add_u32(w, "tokenizer.ggml.bos_token_id", v->bos));
    assert_ok(qn_gguf_writer_add_u32(w, "tokenizer.ggml.eos_token_id", v->eos));
    assert_ok(qn_gguf_writer_begin_data(w));
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
    assert_ok(qn_gguf_open(path, &file));
    assert_ok(qn_tokenizer_create(file, &tok));
    qn_gguf_close(file);
    unlink(path);
    return tok;
}

/* text: of the error; NULL: there is none. */
static void compare(const struct vocab *model, const struct vocab *draft, const char *text)
{
    qn_tokenizer *a = create(model), *b = create(draft);
    const qn_draft_vocab x = { "model.gguf", a, model->n }, y = { "draft.gguf", b, draft->n };
    if (text)
        assert_fails(qn_draft_vocab_compare(&x, &y), QN_ERR_UNSUPPORTED, text);
    else
        assert_ok(qn_draft_vocab_compare(&x, &y));
    qn_tokenizer_free(a);
    qn_tokenizer_free(b);
}

TEST(equal_ones_serve)
{
    struct vocab v = usual;
    compare(&usual, &v, NULL);
    v.types[5] = QN_TOKEN_USER_DEFINED; /* it is text, too */
    compare(&usual, &v, NULL);
}

TEST(padding_may_differ)
{
    static const char *const names[] = { "[PAD5]", "<unused5>", "<|reserved_special_token_5|>", "<pad5>", "[UNUSED5]" };
    struct vocab longer = usual;
    longer.n = 7;
    for (size_t i = 0; i < COUNT(names); i++) {
        longer.tokens[6] = names[i];
        longer.types[6] = i % 2 ? QN_TOKEN_CONTROL : QN_TOKEN_UNUSED;
        compare(&usual, &longer, NULL);
        compare(&longer, &usual, NULL);
    }
    longer.tokens[6] = "ba";
    longer.types[6] = QN_TOKEN_NORMAL;
    compare(&usual, &longer,
            "draft.gguf: not the vocabulary of model.gguf: it has 7 tokens, expected 6, and token 6, 'ba'");
    compare(&longer, &usual, "it has 6 tokens, expected 7, and token 6, 'ba', is no padding");
}

TEST(the_first_difference_is_named)
{
    struct vocab v = usual;
    v.tokens[2] = "\xC3\xA9";
    compare(&usual, &v, "token 2 is '\\xe9', expected 'c'");
    v = usual;
    v.types[5] = QN_TOKEN_CONTROL;
    compare(&usual, &v, "token 5, 'ab', is a control token");
    compare(&v, &usual, "token 5, 'ab', is no control token");
    v = usual;
    v.eos = 0;
    compare(&usual, &v, "the token of the end of text is 0, expected 1");
    v = usual;
    v.bos = 1;
    compare(&usual, &v, "the token of the beginning of text is 1, expected 0");
    v = usual;
    v.pre = "qwen2";
    compare(&usual, &v, "its tokeniser is gpt2/qwen2, expected gpt2/gpt-2");
}

TEST(files_without_a_tokeniser)
{
    qn_tokenizer *tok = create(&usual);
    const qn_draft_vocab with = { "model.gguf", tok, 5 }, without = { "draft.gguf", NULL, 5 },
                         longer = { "longer.gguf", NULL, 6 };
    assert_ok(qn_draft_vocab_compare(&without, &without));
    assert_fails(qn_draft_vocab_compare(&without, &longer), QN_ERR_UNSUPPORTED, "longer.gguf: it has 6 tokens");
    assert_fails(qn_draft_vocab_compare(&with, &without), QN_ERR_UNSUPPORTED, "only one of them has a tokeniser");
    qn_tokenizer_free(tok);
}
