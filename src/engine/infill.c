/* Finds the tokens between which a model fills a gap. */
#include "engine/internal.h"

/* The names that models of code give these tokens, as llama.cpp lists them (src/llama-vocab.cpp). */
static const char *const prefixes[] = { "<|fim_prefix|>",  "<fim-prefix>",
                                        "<fim_prefix>",    "<\357\275\234fim\342\226\201begin\357\275\234>",
                                        "<PRE>",           "\342\226\201<PRE>",
                                        "<|code_prefix|>", NULL };
static const char *const suffixes[] = { "<|fim_suffix|>",  "<fim-suffix>",
                                        "<fim_suffix>",    "<\357\275\234fim\342\226\201hole\357\275\234>",
                                        "<SUF>",           "\342\226\201<SUF>",
                                        "<|code_suffix|>", NULL };
static const char *const middles[] = { "<|fim_middle|>",  "<fim-middle>",
                                       "<fim_middle>",    "<\357\275\234fim\342\226\201end\357\275\234>",
                                       "<MID>",           "\342\226\201<MID>",
                                       "<|code_middle|>", NULL };
static const char *const repositories[] = {
    "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", NULL
};
static const char *const separators[] = { "<|file_sep|>", NULL };

static qn_status find(const qn_model *model, const char *key, const char *const *names, qn_token *out)
{
    QN_TRY(qn_tokenizer_read_id(model->tokenizer, model->file, key, out));
    for (size_t i = 0; *out < 0 && names[i]; i++)
        *out = qn_tokenizer_find(model->tokenizer, names[i]);
    return QN_OK;
}

qn_status qn_model_find_infill(qn_model *model)
{
    qn_infill_tokens *t = &model->infill;
    *t = (qn_infill_tokens){ QN_NO_TOKEN, QN_NO_TOKEN, QN_NO_TOKEN, QN_NO_TOKEN, QN_NO_TOKEN };
    if (!model->tokenizer)
        return QN_OK;
    QN_TRY(find(model, "tokenizer.ggml.fim_pre_token_id", prefixes, &t->prefix));
    QN_TRY(find(model, "tokenizer.ggml.fim_suf_token_id", suffixes, &t->suffix));
    QN_TRY(find(model, "tokenizer.ggml.fim_mid_token_id", middles, &t->middle));
    QN_TRY(find(model, "tokenizer.ggml.fim_rep_token_id", repositories, &t->repository));
    return find(model, "tokenizer.ggml.fim_sep_token_id", separators, &t->file_separator);
}

const qn_infill_tokens *qn_model_get_infill(const qn_model *model)
{
    const qn_infill_tokens *t = &model->infill;
    return t->prefix >= 0 && t->suffix >= 0 && t->middle >= 0 ? t : NULL;
}
