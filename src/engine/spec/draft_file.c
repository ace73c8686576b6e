/* What a draft model's file is, and comparison of vocabularies. */
#include "engine/spec/draft_file.h"

#include "base/append.h"
#include "base/strings.h"
#include "model/dflash.h"
#include "model/role.h"

#include <string.h>

/* ---- Kinds ---- */

qn_status qn_draft_file_kind(const qn_gguf *file, qn_draft_kind *out)
{
    const qn_file_role role = qn_file_role_of(file);
    qn_string architecture;
    *out = QN_DRAFT_MODEL;
    QN_TRY(qn_gguf_get_string(file, "general.architecture", true, &architecture));
    if (role == QN_FILE_MODEL)
        return QN_OK;
    *out = QN_DRAFT_DFLASH;
    if (role == QN_FILE_DRAFTER && qn_dflash_is_drafter(file))
        return QN_OK;
    *out = QN_DRAFT_MTP;
    if (role == QN_FILE_DRAFTER && qn_file_is_mtp_block(file))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "%s: %s, expected a small model, a drafter of the architecture dflash, or a block for multi-token "
                   "prediction",
                   qn_gguf_path(file),
                   role == QN_FILE_DRAFTER ? "a drafter of another architecture" : "neither a model nor a drafter");
}

/* ---- Vocabularies ---- */

static qn_string piece_of(const qn_tokenizer *tok, size_t token)
{
    qn_string piece = { "", 0 };
    (void)qn_tokenizer_piece(tok, (int32_t)token, &piece.data, &piece.length);
    return piece;
}

/* Whether a token fills a table, by the names that converters give: "[PAD7]", "<pad7>", "<unused7>", "<|unused_7|>",
 * "<|reserved_special_token_7|>", "<|dummy_7|>". */
static bool is_padding(const qn_tokenizer *tok, size_t token)
{
    static const char *const names[] = { "PAD", "pad", "unused", "UNUSED", "reserved", "dummy" };
    const qn_string piece = piece_of(tok, token);
    const bool is_bracketed = piece.length > 2 && (*piece.data == '[' || *piece.data == '<');
    for (size_t i = 0; is_bracketed && i < sizeof names / sizeof *names; i++)
        if (qn_memmem(piece.data, piece.length, names[i], strlen(names[i])))
            return true;
    return !piece.length;
}

static const char *printed(qn_string piece, char text[80])
{
    qn_text_buffer to = qn_append_to(text, 80);
    for (size_t i = 0; i < piece.length && i < 16; i++) {
        const unsigned char byte = (unsigned char)piece.data[i];
        if (byte > 0x20 && byte < 0x7f && byte != '\\')
            qn_append(&to, "%c", byte);
        else
            qn_append(&to, "\\x%02x", byte);
    }
    return text;
}

static qn_status compare_token(const qn_draft_vocab *model, const qn_draft_vocab *draft, size_t token)
{
    char one[80], other[80];
    const qn_string a = piece_of(model->tokenizer, token), b = piece_of(draft->tokenizer, token);
    if (a.length != b.length || memcmp(a.data, b.data, a.length) != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: not the vocabulary of %s: token %zu is '%s', expected '%s'",
                       draft->path, model->path, token, printed(b, other), printed(a, one));
    const bool is_special = qn_tokenizer_is_special(draft->tokenizer, (int32_t)token);
    if (is_special != qn_tokenizer_is_special(model->tokenizer, (int32_t)token))
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: not the vocabulary of %s: token %zu, '%s', is %s control token",
                       draft->path, model->path, token, printed(b, other), is_special ? "a" : "no");
    return QN_OK;
}

static qn_status compare_ends(const qn_draft_vocab *model, const qn_draft_vocab *draft)
{
    static const char *const names[] = { "beginning", "end" };
    const int32_t of_model[] = { qn_tokenizer_bos(model->tokenizer), qn_tokenizer_eos(model->tokenizer) },
                  of_draft[] = { qn_tokenizer_bos(draft->tokenizer), qn_tokenizer_eos(draft->tokenizer) };
    for (size_t i = 0; i < 2; i++)
        if (of_model[i] != of_draft[i])
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: not the vocabulary of %s: the token of the %s of text is %d, expected %d", draft->path,
                           model->path, names[i], (int)of_draft[i], (int)of_model[i]);
    return QN_OK;
}

qn_status qn_draft_vocab_compare(const qn_draft_vocab *model, const qn_draft_vocab *draft)
{
    const qn_tokenizer *a = model->tokenizer, *b = draft->tokenizer;
    if (!a && !b && model->n_rows == draft->n_rows)
        return QN_OK;
    if (!a && !b)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: it has %zu tokens, expected %zu, as %s has: neither has a tokeniser",
                       draft->path, draft->n_rows, model->n_rows, model->path);
    if (!a || !b)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: not the vocabulary of %s: only one of them has a tokeniser",
                       draft->path, model->path);
    if (strcmp(qn_tokenizer_name(a), qn_tokenizer_name(b)) != 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: not the vocabulary of %s: its tokeniser is %s, expected %s",
                       draft->path, model->path, qn_tokenizer_name(b), qn_tokenizer_name(a));
    const size_t n_a = qn_tokenizer_n_vocab(a), n_b = qn_tokenizer_n_vocab(b), n = n_a < n_b ? n_a : n_b;
    for (size_t token = 0; token < n; token++)
        QN_TRY(compare_token(model, draft, token));
    for (size_t token = n; token < (n_a > n_b ? n_a : n_b); token++)
        if (!is_padding(n_a > n_b ? a : b, token)) {
            char text[80];
            return qn_fail(QN_ERR_UNSUPPORTED,
                           "%s: not the vocabulary of %s: it has %zu tokens, expected %zu, and token %zu, '%s', is no "
                           "padding",
                           draft->path, model->path, n_b, n_a, token,
                           printed(piece_of(n_a > n_b ? a : b, token), text));
        }
    return compare_ends(model, draft);
}
