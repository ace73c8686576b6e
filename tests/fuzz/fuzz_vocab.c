/* Vocabularies of hostile files: a small one is edited (gguf_edits.h), loaded, and used. Tokens of any text are in the
 * vocabulary and decode to no more than the text; a template that loads renders a conversation or reports why not.
 *
 * An input is: a byte that selects the vocabulary, edits up to a byte 0xff and two zeros, text. */
#include "gguf_edits.h"

#include "chat/chat.h"
#include "text/tokenizer.h"

#include "../unit/helper_vocab.h"

static const char *const pres[] = { "qwen2", "qwen35", "smollm", "llama-bpe", "gpt-2", "default" };
enum { N_PRES = sizeof pres / sizeof *pres, MAX_TEXT = 4000 };

static const char *const merges[] = { "Ġ Ġ", "ĠĠ ĠĠ", "a a", "aa aa", "Ġ a", "b c",
                                      "a b", "ab c",  "Ã ©", "1 1",   "Ċ Ċ", NULL };
static const struct added_token added[] = { { "<|endoftext|>", 3 }, { "<|im_start|>", 3 }, { "<|im_end|>", 3 },
                                            { "<t>", 4 },           { "<t><t>", 4 },       { NULL, 0 } };
static const char template[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static struct file_bytes vocabs[N_PRES];
static struct edited_file *edited;

static void set_up(void)
{
    for (size_t i = 0; i < N_PRES; i++) {
        const struct vocab_spec spec = { .model = "gpt2",
                                         .pre = pres[i],
                                         .merges = merges,
                                         .added = added,
                                         .chat_template = template,
                                         .bos = 256 + 11,
                                         .eos = 256 + 13,
                                         .add_bos = 2 };
        vocabs[i] = make_vocab(&spec);
    }
    edited = calloc(1, sizeof *edited);
    require(edited, "memory");
}

static void use_text(const qn_tokenizer *tok, const char *text, size_t n, bool special)
{
    const size_t n_vocab = qn_tokenizer_n_vocab(tok);
    int32_t *tokens;
    size_t count;
    unsigned char read = 0;
    if (qn_tokenizer_encode(tok, text, n, special, true, &tokens, &count) != QN_OK) {
        require(*qn_error_text(), "a refusal has a text");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const char *bytes;
        size_t length;
        require(tokens[i] >= 0 && (size_t)tokens[i] < n_vocab, "tokens are in the vocabulary");
        require(qn_tokenizer_piece(tok, tokens[i], &bytes, &length) == QN_OK, "tokens have pieces");
        for (size_t b = 0; b < length; b++)
            read |= (unsigned char)bytes[b];
        (void)qn_tokenizer_is_special(tok, tokens[i]);
        (void)qn_tokenizer_is_eog(tok, tokens[i]);
    }
    require(read <= 0xff, "pieces can be read");
    /* form C: at most three times as many bytes */
    require(count <= 3 * n + 1, "there is a token for each byte at most");
    free(tokens);
}

static void use_chat(const qn_gguf *file, const qn_tokenizer *tok, const char *text, size_t n)
{
    qn_chat_template *chat;
    if (qn_chat_template_create(file, tok, NULL, &chat) != QN_OK)
        return;
    json_t *content = json_stringn_nocheck(text, n);
    json_t *conversation =
        json_pack("{s:[{s:s, s:o}], s:b}", "messages", "role", "user", "content", content, "add_generation_prompt", 1);
    require(conversation, "memory");
    int32_t *tokens = NULL;
    size_t count;
    if (qn_chat_encode(tok, chat, conversation, 0, &tokens, &count) == QN_OK)
        for (size_t i = 0; i < count; i++)
            require(tokens[i] >= 0 && (size_t)tokens[i] < qn_tokenizer_n_vocab(tok), "tokens are in the vocabulary");
    free(tokens);
    json_decref(conversation);
    qn_chat_template_free(chat);
}

static void use(const qn_gguf *file, const char *text, size_t n)
{
    static const char known[] = "a bcd  aaaa <|im_end|> <t><t>\xc3\xa9\xff 1111\n\n";
    qn_tokenizer *tok;
    const char *bytes;
    size_t length;
    if (qn_tokenizer_create(file, &tok) != QN_OK) {
        require(*qn_error_text(), "a refusal has a text");
        return;
    }
    const int32_t n_vocab = (int32_t)qn_tokenizer_n_vocab(tok),
                  ids[] = { qn_tokenizer_bos(tok), qn_tokenizer_eos(tok) };
    require(ids[0] >= -1 && ids[0] < n_vocab && ids[1] >= -1 && ids[1] < n_vocab,
            "special tokens are in the vocabulary");
    require(qn_tokenizer_piece(tok, n_vocab, &bytes, &length) != QN_OK, "no token is beyond it");
    require(qn_tokenizer_piece(tok, -1, &bytes, &length) != QN_OK, "nor before it");
    require(*qn_tokenizer_name(tok), "it has a name");
    use_text(tok, text, n, false);
    use_text(tok, text, n, true);
    use_text(tok, known, sizeof known - 1, true);
    use_chat(file, tok, text, n);
    qn_tokenizer_free(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char end[] = { '\xff', 0, 0 };
    const uint8_t *text = size ? memmem(data, size, end, sizeof end) : NULL;
    const size_t n_edits = text ? (size_t)(text - data) : size;
    struct input in = { data, n_edits };
    qn_gguf *file;
    if (!edited)
        set_up();
    const struct file_bytes *base = &vocabs[take_byte(&in) % N_PRES];
    edited_read(edited, base->data, base->n);
    edited_apply(edited, &in);
    if (qn_gguf_open_memory(edited->file.data, edited->file.n, "fuzz", &file) == QN_OK) {
        const size_t n = text ? size - n_edits - sizeof end : 0;
        use(file, text ? (const char *)text + sizeof end : "", n < MAX_TEXT ? n : MAX_TEXT);
        qn_gguf_close(file);
    }
    return 0;
}
