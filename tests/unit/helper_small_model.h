/* A small model whose answers are random texts, with a vocabulary of bytes. */
#ifndef QN_TESTS_HELPER_SMALL_MODEL_H
#define QN_TESTS_HELPER_SMALL_MODEL_H

#include "helper_scheduler.h"
#include "helper_vocab.h"

enum { END = 256 }; /* the token after those of bytes */

/* Loads a random model with 320 logits, a vocabulary of bytes and an end token. */
static inline void load_small(qn_model **small)
{
    static const struct added_token added[] = { { "<|end|>", 3 }, { NULL, 0 } };
    const struct vocab_spec spec = { .model = "gpt2", .pre = "gpt-2", .added = added, .eos = END };
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    load_model("tests/golden/qwen3.f16.gguf", 0, 1, small);
    assert_null((*small)->tokenizer);
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "vocabulary", &file));
    assert_ok(qn_tokenizer_create(file, &(*small)->tokenizer));
    qn_gguf_close(file);
    free(bytes.data);
}

#endif
