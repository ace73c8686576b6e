/* GGUF files for fuzzing: a sound one, and edits that an input describes. So inputs are small, pass the reader, and
 * reach the code that uses the values.
 *
 * An edit is a byte for its kind and the key, tensor or byte to change, and operands. Whatever the input, the result
 * is written as a file; it is sound unless an edit says otherwise. */
#ifndef QN_TESTS_GGUF_EDITS_H
#define QN_TESTS_GGUF_EDITS_H

#include "fuzz.h"

#include "gguf/gguf.h"
#include "quant/quant.h"

struct blob {
    uint8_t *data;
    size_t n, capacity;
};

static inline void blob_add(struct blob *b, const void *data, size_t n)
{
    if (b->n + n > b->capacity) {
        b->capacity = 2 * (b->n + n) + 64;
        b->data = realloc(b->data, b->capacity);
        require(b->data != NULL, "memory");
    }
    if (n)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

static inline void blob_set(struct blob *b, const void *data, size_t n)
{
    b->n = 0;
    blob_add(b, data, n);
}

enum {
    EDIT_MAX_KEYS = 96,
    EDIT_MAX_TENSORS = 96,
    EDIT_MAX_EDITS = 40,
    EDIT_MAX_DATA = 1 << 20,
    EDIT_MAX_ELEMENTS = 4096
};

struct edited_key {
    struct blob name, value; /* the value as in the file, after its type */
    uint32_t type, element_type;
    uint64_t count; /* of an array; the actual number of elements unless an edit changes it */
};

struct edited_tensor {
    struct blob name, data;
    uint32_t type, n_dims;
    uint64_t dims[QN_GGUF_MAX_DIMS];
    uint64_t offset; /* unless the data is laid out again */
};

struct edited_file {
    struct edited_key keys[EDIT_MAX_KEYS];
    struct edited_tensor tensors[EDIT_MAX_TENSORS];
    size_t n_keys, n_tensors;
    struct blob data; /* of all tensors, at their offsets */
    struct blob file; /* the result */
};

/* ---- Reading a sound file ---- */

static inline void edited_read(struct edited_file *e, const uint8_t *data, size_t size)
{
    qn_gguf *file;
    require(qn_gguf_open_memory(data, size, "base", &file) == QN_OK, "the file to edit is sound");
    const uint8_t *begin = data + size;
    e->n_keys = e->n_tensors = 0;
    for (size_t i = 0; i < qn_gguf_n_kv(file) && i < EDIT_MAX_KEYS; i++) {
        const qn_gguf_kv *kv = qn_gguf_kv_at(file, i);
        struct edited_key *k = &e->keys[e->n_keys++];
        blob_set(&k->name, kv->key.data, kv->key.length);
        k->type = kv->type;
        k->element_type = kv->element_type;
        k->count = kv->count;
        k->value.n = 0;
        if (kv->type == QN_GGUF_STRING) {
            const uint64_t length = kv->string.length;
            blob_add(&k->value, &length, sizeof length);
            blob_add(&k->value, kv->string.data, kv->string.length);
        } else {
            blob_add(&k->value, kv->data, kv->bytes);
        }
    }
    for (size_t i = 0; i < qn_gguf_n_tensors(file) && i < EDIT_MAX_TENSORS; i++) {
        const qn_gguf_tensor *t = qn_gguf_tensor_at(file, i);
        struct edited_tensor *to = &e->tensors[e->n_tensors++];
        blob_set(&to->name, t->name.data, t->name.length);
        blob_set(&to->data, t->data, t->bytes);
        to->type = t->type == QN_TYPE_OX2_0 ? (uint32_t)QN_TYPE_Q2_0 : t->type; /* files have no number for it */
        to->n_dims = t->n_dims;
        memcpy(to->dims, t->dims, sizeof to->dims);
        to->offset = t->offset;
        if (t->data - t->offset < begin)
            begin = t->data - t->offset;
    }
    blob_set(&e->data, begin, (size_t)(data + size - begin));
    qn_gguf_close(file);
}

static inline void edited_free(struct edited_file *e)
{
    for (size_t i = 0; i < EDIT_MAX_KEYS; i++) {
        free(e->keys[i].name.data);
        free(e->keys[i].value.data);
    }
    for (size_t i = 0; i < EDIT_MAX_TENSORS; i++) {
        free(e->tensors[i].name.data);
        free(e->tensors[i].data.data);
    }
    free(e->data.data);
    free(e->file.data);
    free(e);
}

/* ---- Values ---- */

/* The size of a scalar; 0 for types without a fixed size. */
static inline size_t scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
    return type < sizeof bytes ? bytes[type] : 0;
}

static inline uint64_t take_integer(struct input *in)
{
    static const uint64_t known[] = {
        0,          1,          2,          3,          4,         5,          7,
        8,          15,         16,         17,         32,        48,         63,
        64,         65,         96,         127,        128,       129,        192,
        255,        256,        257,        384,        511,       512,        1000,
        1024,       4095,       4096,       4097,       16384,     65535,      65536,
        1u << 20,   1u << 22,   1u << 24,   1u << 30,   INT32_MAX, 1u << 31,   UINT32_MAX - 1,
        UINT32_MAX, 1ull << 32, 1ull << 40, 1ull << 62, INT64_MAX, 1ull << 63, UINT64_MAX - 1,
        UINT64_MAX
    };
    const uint8_t which = take_byte(in);
    return which < sizeof known / sizeof *known ? known[which] : take_number(in, 1u << which % 4);
}

static inline double take_float(struct input *in)
{
    static const double known[] = { 0,   -0.0, 1,   -1,   0.5,    2,     4,     1e-6, 1e-5, 1e-38, 1e-45, 1e-300,
                                    100, 1e4,  1e6, 1e30, 3.4e38, 1e300, -1e30, 0.25, 1.5,  1e-3,  0.999, 1e10 };
    const uint8_t which = take_byte(in);
    double value;
    if (which < sizeof known / sizeof *known)
        return known[which];
    if (which < 250)
        return (double)(int16_t)take_number(in, 2) / 64;
    const uint64_t bits = which < 252 ? 0x7ff0000000000000 : which < 254 ? 0x7ff8000000000000 : take_number(in, 8);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void add_scalar(struct input *in, uint32_t type, struct blob *out)
{
    const double value = type == QN_GGUF_F32 || type == QN_GGUF_F64 ? take_float(in) : 0;
    const float single = (float)value;
    uint64_t bits = 0;
    if (type == QN_GGUF_F64)
        memcpy(&bits, &value, sizeof value);
    else if (type == QN_GGUF_F32)
        memcpy(&bits, &single, sizeof single);
    else
        bits = take_integer(in);
    blob_add(out, &bits, scalar_bytes(type));
}

/* Names and values that the code looks for. Those that begin with a point are appended to an architecture. */
static const char *const edit_words[] = { "llama",
                                          "qwen2",
                                          "qwen3",
                                          "qwen35",
                                          "gpt2",
                                          "no_vocab",
                                          "bpe",
                                          "default",
                                          "qwen2",
                                          "smollm",
                                          "llama-bpe",
                                          "gpt-2",
                                          "yarn",
                                          "linear",
                                          "none",
                                          "longrope",
                                          "identity",
                                          "explicit",
                                          "fwht",
                                          "general.architecture",
                                          "general.alignment",
                                          "general.file_type",
                                          "general.quantization_version",
                                          "general.name",
                                          "split.no",
                                          "split.count",
                                          "split.tensors.count",
                                          "tokenizer.ggml.model",
                                          "tokenizer.ggml.pre",
                                          "tokenizer.ggml.tokens",
                                          "tokenizer.ggml.token_type",
                                          "tokenizer.ggml.merges",
                                          "tokenizer.ggml.bos_token_id",
                                          "tokenizer.ggml.eos_token_id",
                                          "tokenizer.ggml.eot_token_id",
                                          "tokenizer.ggml.eom_token_id",
                                          "tokenizer.ggml.unknown_token_id",
                                          "tokenizer.ggml.padding_token_id",
                                          "tokenizer.ggml.add_bos_token",
                                          "tokenizer.chat_template",
                                          ".block_count",
                                          ".context_length",
                                          ".embedding_length",
                                          ".feed_forward_length",
                                          ".attention.head_count",
                                          ".attention.head_count_kv",
                                          ".attention.key_length",
                                          ".attention.value_length",
                                          ".attention.layer_norm_rms_epsilon",
                                          ".attention.scale",
                                          ".attention.sliding_window",
                                          ".attention.causal",
                                          ".attention.recurrent_layers",
                                          ".rope.dimension_count",
                                          ".rope.dimension_sections",
                                          ".rope.freq_base",
                                          ".rope.scale_linear",
                                          ".rope.scaling.type",
                                          ".rope.scaling.factor",
                                          ".rope.scaling.attn_factor",
                                          ".rope.scaling.original_context_length",
                                          ".rope.scaling.yarn_attn_factor",
                                          ".rope.scaling.yarn_beta_fast",
                                          ".rope.scaling.yarn_beta_slow",
                                          ".rope.scaling.yarn_ext_factor",
                                          ".rope.scaling.yarn_log_multiplier",
                                          ".ssm.conv_kernel",
                                          ".ssm.group_count",
                                          ".ssm.inner_size",
                                          ".ssm.state_size",
                                          ".ssm.time_step_rank",
                                          ".full_attention_interval",
                                          ".nextn_predict_layers",
                                          ".expert_count",
                                          ".logit_scale",
                                          ".embedding_scale",
                                          ".residual_scale",
                                          ".attn_logit_softcapping",
                                          ".final_logit_softcapping",
                                          "prism.hadamard.version",
                                          "prism.hadamard.block_size",
                                          "prism.hadamard.transform",
                                          "prism.hadamard.axis",
                                          "prism.hadamard.sign_mode",
                                          "prism.hadamard.weight_names",
                                          "prism.hadamard.inverse_weight_names",
                                          "prism.hadamard.gdn_v_grouped",
                                          "prism.hadamard.tied_output",
                                          "prism.hadamard.sign_widths",
                                          "prism.hadamard.sign_values",
                                          "token_embd.weight",
                                          "output.weight",
                                          "output_norm.weight",
                                          "rope_freqs.weight",
                                          "blk.0.attn_q.bias",
                                          "blk.0.attn_q_norm.weight",
                                          "blk.0.attn_gate.weight",
                                          "blk.0.ssm_a",
                                          "blk.0.ssm_conv1d.weight",
                                          "blk.1.attn_qkv.weight",
                                          "blk.1.attn_norm.weight",
                                          "blk.2.ffn_up.weight",
                                          "cls.output.weight",
                                          ".pooling_type",
                                          ".classifier.output_labels",
                                          "tokenizer.chat_template.rerank" };

enum { N_EDIT_WORDS = sizeof edit_words / sizeof *edit_words };

/* A known word, or bytes of the input. */
static inline void take_text(const struct edited_file *e, struct input *in, struct blob *out)
{
    const uint8_t which = take_byte(in);
    const uint8_t *bytes;
    out->n = 0;
    if (which < N_EDIT_WORDS) {
        if (*edit_words[which] == '.' && e->n_keys && e->keys[0].value.n > 8)
            blob_add(out, e->keys[0].value.data + 8, e->keys[0].value.n - 8); /* general.architecture comes first */
        blob_add(out, edit_words[which], strlen(edit_words[which]));
        return;
    }
    const size_t n = take_bytes(in, take_byte(in), &bytes);
    blob_add(out, bytes, n);
}

static inline void add_string(struct blob *to, const struct blob *text)
{
    const uint64_t length = text->n;
    blob_add(to, &length, sizeof length);
    blob_add(to, text->data, text->n);
}

/* The offset of element i of an array, or its end. */
static inline size_t element_at(const struct edited_key *k, uint64_t i)
{
    size_t at = 0;
    if (k->element_type != QN_GGUF_STRING)
        return i * scalar_bytes(k->element_type) < k->value.n ? (size_t)i * scalar_bytes(k->element_type) : k->value.n;
    for (; i && at + 8 <= k->value.n; i--) {
        uint64_t length;
        memcpy(&length, k->value.data + at, sizeof length);
        at = length <= k->value.n - at - 8 ? at + 8 + (size_t)length : k->value.n;
    }
    return at;
}

/* ---- Edits of keys ---- */

static inline void edit_element(const struct edited_file *e, struct edited_key *k, struct input *in, bool inserts)
{
    const uint64_t i = take_number(in, 2) % (k->count + 1);
    const size_t begin = element_at(k, i), end = inserts ? begin : element_at(k, i + 1);
    struct blob value = { 0 }, text = { 0 };
    blob_add(&value, k->value.data, begin);
    if (k->element_type == QN_GGUF_STRING) {
        take_text(e, in, &text);
        add_string(&value, &text);
    } else {
        add_scalar(in, k->element_type, &value);
    }
    if (end < k->value.n)
        blob_add(&value, k->value.data + end, k->value.n - end);
    k->count += inserts || i == k->count;
    free(k->value.data);
    free(text.data);
    k->value = value;
}

/* Changes the number of elements, repeating the first n. */
static inline void edit_count(struct edited_key *k, struct input *in)
{
    const uint64_t n = take_number(in, 2) % (k->count + 1), count = take_number(in, 2) % EDIT_MAX_ELEMENTS;
    const size_t bytes = element_at(k, n);
    struct blob value = { 0 };
    k->count = 0;
    while (n && k->count + n <= count && value.n + bytes < EDIT_MAX_DATA) {
        blob_add(&value, k->value.data, bytes);
        k->count += n;
    }
    free(k->value.data);
    k->value = value;
}

static inline void swap_elements(struct edited_key *k, struct input *in)
{
    const uint64_t i = take_number(in, 2) % (k->count + 1), j = i + take_byte(in) % (k->count + 1 - i);
    const size_t a = element_at(k, i), b = element_at(k, i + 1), c = element_at(k, j < i + 1 ? i + 1 : j),
                 d = element_at(k, j + 1);
    struct blob value = { 0 };
    if (!k->value.n || c < b || d < c)
        return;
    blob_add(&value, k->value.data, a);
    blob_add(&value, k->value.data + c, d - c);
    blob_add(&value, k->value.data + b, c - b);
    blob_add(&value, k->value.data + a, b - a);
    blob_add(&value, k->value.data + d, k->value.n - d);
    free(k->value.data);
    k->value = value;
}

/* Gives a key a new value of its type. */
static inline void edit_value(const struct edited_file *e, struct edited_key *k, struct input *in)
{
    struct blob text = { 0 };
    if (k->type == QN_GGUF_ARRAY) {
        edit_element(e, k, in, false);
        return;
    }
    k->value.n = 0;
    if (k->type == QN_GGUF_STRING) {
        take_text(e, in, &text);
        add_string(&k->value, &text);
        free(text.data);
    } else {
        add_scalar(in, k->type, &k->value);
    }
}

static inline void edit_type(const struct edited_file *e, struct edited_key *k, struct input *in)
{
    k->type = take_byte(in) % 13;
    k->value.n = 0;
    k->count = 0;
    if (k->type == QN_GGUF_ARRAY)
        k->element_type = take_byte(in) % 13;
    edit_value(e, k, in);
}

static inline void new_key(struct edited_file *e, struct input *in)
{
    if (e->n_keys == EDIT_MAX_KEYS)
        return;
    struct edited_key *k = &e->keys[e->n_keys];
    take_text(e, in, &k->name);
    edit_type(e, k, in);
    e->n_keys++;
}

static inline void remove_key(struct edited_file *e, size_t i)
{
    const struct edited_key removed = e->keys[i];
    memmove(&e->keys[i], &e->keys[i + 1], (e->n_keys - i - 1) * sizeof *e->keys);
    e->keys[--e->n_keys] = removed; /* its memory is reused for the next one */
}

/* ---- Edits of tensors ---- */

static inline uint32_t take_type(struct input *in)
{
    static const uint32_t types[] = { QN_TYPE_F32, QN_TYPE_F16, QN_TYPE_BF16, QN_TYPE_Q8_0, QN_TYPE_Q4_0, 41, 42 };
    size_t n;
    const qn_type_info *known = qn_types(&n);
    const uint8_t which = take_byte(in);
    if (which < sizeof types / sizeof *types)
        return types[which];
    return which < 128 ? (uint32_t)known[which % n].type : which < 250 ? which % 64u : (uint32_t)take_number(in, 4);
}

/* Changes a dimension of a tensor everywhere, and integers with the same value. */
static inline void replace_dim(struct edited_file *e, const struct edited_tensor *t, struct input *in)
{
    const uint64_t from = t->dims[take_byte(in) % QN_GGUF_MAX_DIMS], to = take_integer(in);
    for (size_t i = 0; i < e->n_tensors; i++)
        for (uint32_t d = 0; d < e->tensors[i].n_dims && d < QN_GGUF_MAX_DIMS; d++)
            if (e->tensors[i].dims[d] == from)
                e->tensors[i].dims[d] = to;
    for (size_t i = 0; i < e->n_keys; i++) {
        struct edited_key *k = &e->keys[i];
        const size_t bytes = k->type == QN_GGUF_F32 || k->type == QN_GGUF_F64 ? 0 : scalar_bytes(k->type);
        if (bytes && k->value.n == bytes && !memcmp(k->value.data, &from, bytes))
            blob_set(&k->value, &to, bytes);
    }
}

static inline void edit_tensor(struct edited_file *e, struct edited_tensor *t, struct input *in, unsigned what)
{
    const struct edited_tensor removed = *t;
    const size_t i = (size_t)(t - e->tensors);
    switch (what) {
    case 0: t->dims[take_byte(in) % QN_GGUF_MAX_DIMS] = take_integer(in); break;
    case 1: t->n_dims = take_byte(in) % 6; break;
    case 2: t->type = take_type(in); break;
    case 3: t->offset = take_integer(in) * 32; break;
    case 4: take_text(e, in, &t->name); break;
    case 5:
        memmove(t, t + 1, (e->n_tensors - i - 1) * sizeof *t);
        e->tensors[--e->n_tensors] = removed;
        break;
    case 6: replace_dim(e, t, in); break;
    default:
        if (t->data.n)
            t->data.data[take_number(in, 3) % t->data.n] = take_byte(in);
    }
}

/* Adds a tensor like an existing one, under another name. */
static inline void new_tensor(struct edited_file *e, size_t i, struct input *in)
{
    if (e->n_tensors == EDIT_MAX_TENSORS)
        return;
    struct edited_tensor *to = &e->tensors[e->n_tensors++], *from = &e->tensors[i];
    take_text(e, in, &to->name);
    blob_set(&to->data, from->data.data, from->data.n);
    to->type = from->type;
    to->n_dims = from->n_dims;
    to->offset = from->offset;
    memcpy(to->dims, from->dims, sizeof to->dims);
}

/* ---- Writing ---- */

/* The size of a tensor if its type and dimensions are possible in a sound file, else 0. */
static inline size_t tensor_bytes(const struct edited_tensor *t)
{
    size_t n_types, bytes;
    const qn_type_info *types = qn_types(&n_types), *type = NULL;
    uint64_t weights = 1;
    for (size_t i = 0; i < n_types; i++)
        if ((uint32_t)types[i].type == t->type)
            type = &types[i];
    for (uint32_t d = 0; d < t->n_dims && d < QN_GGUF_MAX_DIMS; d++)
        if (!t->dims[d] || __builtin_mul_overflow(weights, t->dims[d], &weights) || weights > EDIT_MAX_DATA)
            return 0;
    return type && weights % type->block_weights == 0 && qn_row_bytes(type, weights, &bytes) ? bytes : 0;
}

/* Lays the tensors out one after another, each with the bytes that it needs: its own repeated, or zeros. */
static inline void lay_out(struct edited_file *e, bool zeros)
{
    static const uint8_t nothing[4096];
    e->data.n = 0;
    for (size_t i = 0; i < e->n_tensors; i++) {
        struct edited_tensor *t = &e->tensors[i];
        const size_t bytes = tensor_bytes(t);
        t->offset = e->data.n;
        for (size_t left = bytes, n; left && e->data.n < 4 * EDIT_MAX_DATA; left -= n) {
            const bool own = t->data.n && !(zeros && bytes != t->data.n);
            n = own ? t->data.n : sizeof nothing;
            n = n < left ? n : left;
            blob_add(&e->data, own ? t->data.data : nothing, n);
        }
        blob_add(&e->data, nothing, (32 - e->data.n % 32) % 32);
    }
}

static inline void edited_write(struct edited_file *e)
{
    static const uint8_t padding[32];
    struct blob *f = &e->file;
    const uint64_t n_tensors = e->n_tensors, n_keys = e->n_keys;
    f->n = 0;
    blob_add(f, "GGUF\3\0\0\0", 8);
    blob_add(f, &n_tensors, sizeof n_tensors);
    blob_add(f, &n_keys, sizeof n_keys);
    for (size_t i = 0; i < e->n_keys; i++) {
        const struct edited_key *k = &e->keys[i];
        add_string(f, &k->name);
        blob_add(f, &k->type, sizeof k->type);
        if (k->type == QN_GGUF_ARRAY) {
            blob_add(f, &k->element_type, sizeof k->element_type);
            blob_add(f, &k->count, sizeof k->count);
        }
        blob_add(f, k->value.data, k->value.n);
    }
    for (size_t i = 0; i < e->n_tensors; i++) {
        const struct edited_tensor *t = &e->tensors[i];
        add_string(f, &t->name);
        blob_add(f, &t->n_dims, sizeof t->n_dims);
        for (uint32_t d = 0; d < t->n_dims; d++)
            blob_add(f, &t->dims[d % QN_GGUF_MAX_DIMS], sizeof *t->dims);
        blob_add(f, &t->type, sizeof t->type);
        blob_add(f, &t->offset, sizeof t->offset);
    }
    blob_add(f, padding, (32 - f->n % 32) % 32);
    blob_add(f, e->data.data, e->data.n);
}

/* ---- Applying edits ---- */

static inline void edit_once(struct edited_file *e, struct input *in)
{
    enum { VALUE, TYPE, ELEMENT, COUNT, SWAP, RENAME, REMOVE, NEW, TENSOR, NEW_TENSOR = TENSOR + 8, N_KINDS };
    const unsigned kind = take_byte(in) % N_KINDS;
    const uint8_t which = take_byte(in);
    struct edited_key *k = e->n_keys ? &e->keys[which % e->n_keys] : NULL;
    struct edited_tensor *t = e->n_tensors ? &e->tensors[which % e->n_tensors] : NULL;
    if (kind == NEW)
        new_key(e, in);
    else if (kind == NEW_TENSOR && t)
        new_tensor(e, which % e->n_tensors, in);
    else if (kind >= TENSOR && t)
        edit_tensor(e, t, in, kind - TENSOR);
    else if (kind == VALUE && k)
        edit_value(e, k, in);
    else if (kind == TYPE && k)
        edit_type(e, k, in);
    else if (kind == ELEMENT && k && k->type == QN_GGUF_ARRAY)
        edit_element(e, k, in, true);
    else if (kind == COUNT && k && k->type == QN_GGUF_ARRAY)
        edit_count(k, in);
    else if (kind == SWAP && k && k->type == QN_GGUF_ARRAY)
        swap_elements(k, in);
    else if (kind == RENAME && k)
        take_text(e, in, &k->name);
    else if (kind == REMOVE && k)
        remove_key(e, which % e->n_keys);
}

/* edited_apply - applies the edits of an input and writes the file to e->file. The first byte says whether and with
 * what data tensors are laid out again, and whether the file is changed or cut after the edits. */
static inline void edited_apply(struct edited_file *e, struct input *in)
{
    const uint8_t how = take_byte(in);
    const size_t n_pokes = how & 4 ? 1 + take_byte(in) % 4 : 0;
    const uint64_t pokes = n_pokes ? take_number(in, 4) : 0, cut = how & 8 ? take_number(in, 3) : 0;
    for (int i = 0; i < EDIT_MAX_EDITS && in->left; i++)
        edit_once(e, in);
    if (!(how & 1))
        lay_out(e, how & 2);
    edited_write(e);
    for (size_t i = 0; i < n_pokes; i++)
        e->file.data[(pokes >> 8) * (i + 1) % e->file.n] ^= (uint8_t)(pokes + i * 37);
    if (cut)
        e->file.n = cut % e->file.n;
}

#endif
