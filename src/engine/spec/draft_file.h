/* Files given as a model's draft model: what they hold, and whether their tokens are those of the model. A file is
 * untrusted, and decides by itself which drafter it is for. */
#ifndef QN_ENGINE_SPEC_DRAFT_FILE_H
#define QN_ENGINE_SPEC_DRAFT_FILE_H

#include "gguf/gguf.h"
#include "quern/quern.h"
#include "text/tokenizer.h"

/* qn_draft_file_kind - Finds the drafter that a file is for: QN_DRAFT_MODEL for a whole model, whether or not quern
 * runs its architecture, QN_DRAFT_DFLASH for a block drafter, QN_DRAFT_MTP for a block for multi-token prediction
 * alone. QN_ERR_UNSUPPORTED, saying what it is, for all others, such as EAGLE's heads. */
qn_status qn_draft_file_kind(const qn_gguf *file, qn_draft_kind *out);

/* The vocabulary of a model. */
typedef struct qn_draft_vocab {
    const char *path;
    const qn_tokenizer *tokenizer; /* NULL: the file has none that is supported */
    size_t n_rows;                 /* of the embedding table */
} qn_draft_vocab;

/* qn_draft_vocab_compare - QN_ERR_UNSUPPORTED, naming the first difference, unless the draft model's tokens are the
 * model's: the tokeniser, the bytes of each token, which tokens are control tokens, and the tokens of the beginning and
 * end of text. Either may have more tokens at the end if these are padding: names of unused tokens ("[PAD151936]"), as
 * model files have them to fill a table. Of two files without a tokeniser the tables have to be of one size. */
qn_status qn_draft_vocab_compare(const qn_draft_vocab *model, const qn_draft_vocab *draft);

#endif
