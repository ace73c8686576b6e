/* The tokeniser of a checkpoint: tokenizer.json, tokenizer_config.json and the chat template, as GGUF keys. */
#ifndef QN_CONVERT_TOKENIZER_H
#define QN_CONVERT_TOKENIZER_H

#include "convert/config.h"

/* The files of a tokeniser. */
typedef struct qn_tokenizer_files {
    const char *folder;
    const char *path; /* of tokenizer.json */
    const qn_config *config;
    json_t *tokenizer;
    json_t *settings;      /* tokenizer_config.json; NULL if there is none */
    json_t *generation;    /* generation_config.json; NULL if there is none */
    json_t *template_file; /* chat_template.json; NULL if there is none */
    char *template_text;   /* chat_template.jinja; NULL if there is none */
    /* Set by qn_tokenizer_write: */
    bool nfc;           /* text is normalised to form C */
    bool adds_end;      /* the tokeniser adds an end token to each text; set by qn_special_tokens_write */
    size_t n_stripping; /* number of flags lstrip and rstrip of tokens */
} qn_tokenizer_files;

/* qn_tokenizer_files_read - reads the files of a folder. Free them with qn_tokenizer_files_free, even after an error.
 *
 *   path   of tokenizer.json
 *
 * All pointers must stay valid as long as the files. */
qn_status qn_tokenizer_files_read(qn_tokenizer_files *files, const char *folder, const char *path,
                                  const qn_config *config);
void qn_tokenizer_files_free(qn_tokenizer_files *files);

/* The tokens of a vocabulary. */
typedef struct qn_token_list {
    qn_string *tokens; /* [n] */
    int32_t *types;    /* [n] qn_token_type */
    size_t n;
    char *names; /* names made for ids without a token */
} qn_token_list;

/* qn_token_list_read - lists the tokens of all ids below the configuration's n_vocab. They live as long as the files.
 * QN_ERR_FORMAT for an id that is out of range or has two tokens. Free the list with qn_token_list_free, even after an
 * error. */
qn_status qn_token_list_read(const qn_tokenizer_files *files, qn_token_list *list);
void qn_token_list_free(qn_token_list *list);

/* qn_tokenizer_write - adds the vocabulary, the merges, the flags of added tokens and the name of the pre-tokeniser to
 * a GGUF file.
 *
 * QN_ERR_UNSUPPORTED   not byte-level BPE, or an unsupported pre-tokeniser, normaliser, post-processor, decoder, flag
 *                      or setting, with its name
 * QN_ERR_FORMAT        an id that is out of range or has two tokens, or a merge that does not have two parts */
qn_status qn_tokenizer_write(qn_tokenizer_files *files, qn_gguf_writer *writer);

/* qn_token_flags_write - called by qn_tokenizer_write: adds the flags of added tokens, whose ids must be in range. */
qn_status qn_token_flags_write(qn_tokenizer_files *files, qn_gguf_writer *writer);

/* qn_special_tokens_write - adds the ids of special tokens, which of them the tokeniser adds to texts, and the chat
 * templates. QN_ERR_UNSUPPORTED if it adds tokens other than those of beginning and end; QN_ERR_FORMAT for an id out
 * of range. */
qn_status qn_special_tokens_write(qn_tokenizer_files *files, qn_gguf_writer *writer);

#endif
