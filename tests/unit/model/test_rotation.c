/* The metadata keys of rotated weights: a valid file, and one rejected file for each possible error. */
#include "helper_image.h"

#include "model/hadamard.h"

enum { N_KEYS = 12, N_TENSORS = 12, MAX_VALUES = 64, BLOCK = 4 };

struct key {
    const char *name;
    qn_gguf_type type, element;
    double number; /* value of a scalar */
    const char *text;
    const double *numbers; /* elements of an array; NULL: an array of strings */
    const char *const *strings;
    size_t n;
    bool dropped;
};

#define SCALAR(name_, type_, number_)                                                                                  \
    {                                                                                                                  \
        .name = name_, .type = type_, .number = number_                                                                \
    }
#define TEXT(name_, text_)                                                                                             \
    {                                                                                                                  \
        .name = name_, .type = QN_GGUF_STRING, .text = text_                                                           \
    }
#define ARRAY(name_, kind, values, n_)                                                                                 \
    {                                                                                                                  \
        .name = name_, .type = QN_GGUF_ARRAY, .element = kind, .n = n_, values                                         \
    }
#define INTEGERS(name, values, n) ARRAY(name, QN_GGUF_I32, .numbers = values, n)
#define NUMBERS(name, kind, ...)                                                                                       \
    ARRAY(name, kind, .numbers = ((const double[]){ __VA_ARGS__ }), COUNT(((const double[]){ __VA_ARGS__ })))
#define STRINGS(name, ...)                                                                                             \
    ARRAY(name, QN_GGUF_STRING, .strings = ((const char *const[]){ __VA_ARGS__ }),                                     \
          COUNT(((const char *const[]){ __VA_ARGS__ })))
#define DROPPED(name_)                                                                                                 \
    {                                                                                                                  \
        .name = name_, .dropped = true                                                                                 \
    }

struct tensor {
    const char *name;
    uint32_t n_dims;
    uint64_t dims[3];
};

static const double widths[] = { 16, 8 }, no_width_16[] = { 8 };
static const double values[] = { 1, -1, -1, 1, 1, 1, 1, -1, -1, -1, 1, -1, 1, 1, -1, -1, -1, -1, -1, 1, -1, 1, 1, 1 };
static const char *const names[] = { "output.weight",         "blk.0.attn_q.weight",  "blk.0.attn_k.weight",
                                     "blk.0.attn_v.weight",   "blk.0.ffn_up.weight",  "blk.0.ffn_gate.weight",
                                     "blk.0.ffn_down.weight", "blk.1.ssm_out.weight", "blk.1.attn_qkv.weight",
                                     "blk.1.attn_gate.weight" };
static const char *const table[] = { "token_embd.weight" };

static const struct key valid_keys[] = {
    SCALAR("version", QN_GGUF_U32, 1),
    SCALAR("block_size", QN_GGUF_U32, BLOCK),
    TEXT("transform", "normalized-sylvester-walsh-hadamard"),
    TEXT("axis", "input-last-dimension"),
    TEXT("sign_mode", "explicit"),
    INTEGERS("sign_widths", widths, COUNT(widths)),
    INTEGERS("sign_values", values, COUNT(values)),
    ARRAY("weight_names", QN_GGUF_STRING, .strings = names, COUNT(names)),
    ARRAY("inverse_weight_names", QN_GGUF_STRING, .strings = table, 1),
    SCALAR("gdn_v_grouped", QN_GGUF_BOOL, 1),
};

static const struct tensor valid_tensors[] = {
    { "token_embd.weight", 2, { 8, 6 } },      { "output.weight", 2, { 8, 6 } },
    { "blk.0.attn_norm.weight", 1, { 8 } },    { "blk.0.attn_q.weight", 2, { 8, 8 } },
    { "blk.0.attn_k.weight", 2, { 8, 8 } },    { "blk.0.attn_v.weight", 2, { 8, 8 } },
    { "blk.0.ffn_gate.weight", 2, { 8, 16 } }, { "blk.0.ffn_up.weight", 2, { 8, 16 } },
    { "blk.0.ffn_down.weight", 2, { 16, 8 } }, { "blk.1.ssm_out.weight", 2, { 16, 8 } },
    { "blk.1.attn_qkv.weight", 2, { 8, 8 } },  { "blk.1.attn_gate.weight", 2, { 8, 8 } },
};

/* A file: the valid one with up to two keys replaced, dropped or added, and one tensor replaced or (without dimensions)
 * dropped. */
struct changes {
    struct key keys[2];
    struct tensor tensor;
};

static void put_number(qn_gguf_type type, double x)
{
    const float f32 = (float)x;
    const int64_t integer = type == QN_GGUF_F32 || type == QN_GGUF_F64 ? 0 : (int64_t)x;
    switch (type) {
    case QN_GGUF_F32: put(&f32, 4); break;
    case QN_GGUF_F64: put(&x, 8); break;
    case QN_GGUF_U8:
    case QN_GGUF_I8:
    case QN_GGUF_BOOL: put(&integer, 1); break;
    case QN_GGUF_U16:
    case QN_GGUF_I16: put(&integer, 2); break;
    case QN_GGUF_U32:
    case QN_GGUF_I32: put(&integer, 4); break;
    default: put(&integer, 8); break;
    }
}

static void put_whole_key(const struct key *key)
{
    char name[64] = "prism.hadamard.";
    put_key(strchr(key->name, '!') ? key->name + 1 : strcat(name, key->name), key->type); /* '!': a full name */
    if (key->type == QN_GGUF_STRING)
        put_text(key->text);
    if (key->type == QN_GGUF_ARRAY) {
        put32(key->element);
        put64(key->n);
    }
    for (size_t i = 0; key->type == QN_GGUF_ARRAY && i < key->n; i++)
        if (key->strings)
            put_text(key->strings[i]);
        else
            put_number(key->element, key->numbers[i]);
    if (key->type != QN_GGUF_STRING && key->type != QN_GGUF_ARRAY)
        put_number(key->type, key->number);
}

static void make_image(const struct key *base, size_t n_base, const struct changes *changes)
{
    struct key keys[N_KEYS];
    struct tensor tensors[N_TENSORS + 1];
    size_t n_keys = 0, n_tensors = 0, offset = 0;
    for (size_t i = 0; i < n_base; i++)
        keys[n_keys++] = base[i];
    for (size_t c = 0; c < 2 && changes->keys[c].name; c++) {
        size_t i = 0;
        while (i < n_keys && strcmp(keys[i].name, changes->keys[c].name) != 0)
            i++;
        assert_true(i < n_keys || !changes->keys[c].dropped);
        n_keys += i == n_keys;
        keys[i] = changes->keys[c].dropped ? keys[--n_keys] : changes->keys[c];
    }
    for (size_t i = 0; i < COUNT(valid_tensors); i++)
        if (!changes->tensor.name || strcmp(changes->tensor.name, valid_tensors[i].name) != 0)
            tensors[n_tensors++] = valid_tensors[i];
    if (changes->tensor.n_dims)
        tensors[n_tensors++] = changes->tensor;
    put_header(3, n_tensors, n_keys);
    for (size_t i = 0; i < n_keys; i++)
        put_whole_key(&keys[i]);
    for (size_t i = 0; i < n_tensors; i++) {
        const struct tensor *t = &tensors[i];
        size_t bytes = 4;
        for (uint32_t d = 0; d < t->n_dims; d++)
            bytes *= t->dims[d];
        put_tensor(t->name, QN_TYPE_F32, offset, t->n_dims, t->dims[0], t->dims[1], t->dims[2], 1);
        offset += (bytes + 31) / 32 * 32;
    }
    put_data(32, offset);
}

struct opened {
    uint8_t *copy;
    qn_gguf *file;
    qn_rotation rotation;
};

static qn_status open_changed(struct opened *o, const struct key *base, size_t n_base, const struct changes *changes)
{
    *o = (struct opened){ 0 };
    make_image(base, n_base, changes);
    if (open_image(&image, &o->file, &o->copy))
        fail_msg("the GGUF reader rejects the file: %s", qn_error_text());
    return qn_rotation_read(o->file, &o->rotation);
}

static void close_changed(struct opened *o)
{
    qn_rotation_free(&o->rotation);
    qn_gguf_close(o->file);
    free(o->copy);
}

static void open_valid(struct opened *o, const struct key *base, size_t n_base, const struct changes *changes)
{
    if (open_changed(o, base, n_base, changes))
        fail_msg("rejected: %s", qn_error_text());
}

/* ---- Accepted files ---- */

static void assert_signs(const qn_rotation *r)
{
    const float *wide = qn_rotation_signs(r, 16), *narrow = qn_rotation_signs(r, 8);
    assert_non_null(wide);
    assert_non_null(narrow);
    for (size_t i = 0; i < 16; i++)
        assert_true((double)wide[i] == values[i]); /* the first 16 values: 16 is the first of sign_widths */
    for (size_t i = 0; i < 8; i++)
        assert_true((double)narrow[i] == values[16 + i]);
    assert_null(qn_rotation_signs(r, 4));
}

TEST(valid_file)
{
    struct opened o;
    open_valid(&o, valid_keys, COUNT(valid_keys), &(struct changes){ 0 });
    const qn_rotation *r = &o.rotation;
    assert_int_equal(r->block, BLOCK);
    assert_false(r->tied_output);
    assert_true(r->gdn_v_grouped);
    assert_true(r->inverse_embedding);
    assert_int_equal(r->n_widths, 2);
    assert_int_equal(r->widths[0], 8);
    assert_int_equal(r->widths[1], 16);
    assert_signs(r);
    for (size_t i = 0; i < COUNT(names); i++)
        assert_true(qn_rotation_applies(r, names[i]));
    assert_false(qn_rotation_applies(r, "token_embd.weight"));
    assert_false(qn_rotation_applies(r, "blk.0.attn_norm.weight"));
    assert_false(qn_rotation_applies(r, "blk.0.attn_q"));
    close_changed(&o);
}

TEST(no_keys)
{
    struct opened o;
    open_valid(&o, NULL, 0, &(struct changes){ 0 });
    assert_int_equal(o.rotation.block, 0);
    assert_false(qn_rotation_applies(&o.rotation, names[0]));
    assert_null(qn_rotation_signs(&o.rotation, 8));
    close_changed(&o);
}

TEST(every_numeric_type)
{
    static const qn_gguf_type types[] = { QN_GGUF_I8,  QN_GGUF_I16, QN_GGUF_I32, QN_GGUF_I64, QN_GGUF_F32,
                                          QN_GGUF_F64, QN_GGUF_U8,  QN_GGUF_U16, QN_GGUF_U32, QN_GGUF_U64 };
    for (size_t i = 0; i < COUNT(types); i++) {
        const bool is_unsigned = i >= 6; /* widths are unsigned, signs are not */
        struct opened o;
        struct changes changes = { { valid_keys[5], valid_keys[6] }, { 0 } };
        changes.keys[0].element = types[i];
        changes.keys[1].element = is_unsigned ? QN_GGUF_I32 : types[i];
        open_valid(&o, valid_keys, COUNT(valid_keys), &changes);
        assert_signs(&o.rotation);
        close_changed(&o);
    }
}

TEST(identity_signs)
{
    static const struct key identity = TEXT("sign_mode", "identity");
    struct opened o;
    struct key keys[COUNT(valid_keys)];
    size_t n = 0;
    for (size_t i = 0; i < COUNT(valid_keys); i++)
        if (strncmp(valid_keys[i].name, "sign_", 5) != 0)
            keys[n++] = valid_keys[i];
    open_valid(&o, keys, n, &(struct changes){ { identity }, { 0 } });
    assert_int_equal(o.rotation.block, BLOCK);
    assert_null(o.rotation.signs);
    assert_null(qn_rotation_signs(&o.rotation, 8));
    assert_true(qn_rotation_applies(&o.rotation, names[0]));
    close_changed(&o);
}

#define VERSION_2 SCALAR("version", QN_GGUF_U32, 2)
#define TIED SCALAR("tied_output", QN_GGUF_BOOL, 1)

/* Version 2: neither the tensor output.weight nor its name in the list. */
TEST(tied_output)
{
    struct opened o;
    struct key keys[COUNT(valid_keys)];
    memcpy(keys, valid_keys, sizeof keys);
    keys[7].strings++;
    keys[7].n--;
    open_valid(&o, keys, COUNT(keys), &(struct changes){ { VERSION_2, TIED }, { .name = "output.weight" } });
    assert_true(o.rotation.tied_output);
    assert_true(o.rotation.inverse_embedding);
    close_changed(&o);
}

/* Without gdn_v_grouped, value heads are rotated in tiled order; a file without such layers may still set it. */
TEST(grouping)
{
    static const struct key dropped = DROPPED("gdn_v_grouped");
    struct opened o;
    struct key keys[COUNT(valid_keys)];
    open_valid(&o, valid_keys, COUNT(valid_keys), &(struct changes){ { dropped }, { 0 } });
    assert_false(o.rotation.gdn_v_grouped);
    assert_true(qn_rotation_applies(&o.rotation, "blk.1.ssm_out.weight"));
    close_changed(&o);
    memcpy(keys, valid_keys, sizeof keys);
    keys[7].n = 7; /* names up to ffn_down */
    open_valid(&o, keys, COUNT(keys), &(struct changes){ { { 0 } }, { .name = "blk.1.ssm_out.weight" } });
    assert_true(o.rotation.gdn_v_grouped);
    close_changed(&o);
}

/* ---- Rejected files ---- */

static const struct rejection {
    const char *name;
    qn_status status;
    const char *text;
    struct changes changes;
} rejections[] = {
    { "no version", QN_ERR_FORMAT, "' without 'prism.hadamard.version'", { .keys = { DROPPED("version") } } },
    { "version 3",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.version' is 3, expected 1 or 2",
      { .keys = { SCALAR("version", QN_GGUF_U32, 3) } } },
    { "version as a string",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.version' is of type string",
      { .keys = { TEXT("version", "1") } } },
    { "an unknown key",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.seed' is not a supported key",
      { .keys = { SCALAR("seed", QN_GGUF_U32, 7) } } },
    { "an unknown key with a similar prefix",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard2.axis' is not a supported key",
      { .keys = { SCALAR("!prism.hadamard2.axis", QN_GGUF_U32, 7) } } },
    { "tied output in version 1",
      QN_ERR_FORMAT,
      "'prism.hadamard.tied_output' is true, expected false with prism.hadamard.version 1",
      { .keys = { TIED } } },
    { "tied output as a number",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.tied_output' is of type u32, expected bool",
      { .keys = { SCALAR("tied_output", QN_GGUF_U32, 0) } } },
    { "version 2 without tied output",
      QN_ERR_FORMAT,
      "'prism.hadamard.tied_output' is false or missing, expected true with prism.hadamard.version 2",
      { .keys = { VERSION_2 } } },
    { "version 2 with an output matrix",
      QN_ERR_FORMAT,
      "tensor 'output.weight' is present, expected none with prism.hadamard.version 2",
      { .keys = { VERSION_2, TIED } } },
    { "version 1 without an output matrix",
      QN_ERR_FORMAT,
      "tensor 'output.weight' is missing, expected one with prism.hadamard.version 1",
      { .keys = { STRINGS("weight_names", "blk.0.ffn_down.weight", "blk.1.ssm_out.weight") },
        { .name = "output.weight" } } },
    { "no block size",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.block_size' is missing",
      { .keys = { DROPPED("block_size") } } },
    { "block size 0",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.block_size' is 0, expected a power of two",
      { .keys = { SCALAR("block_size", QN_GGUF_U32, 0) } } },
    { "block size 6",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.block_size' is 6, expected a power of two",
      { .keys = { SCALAR("block_size", QN_GGUF_U32, 6) } } },
    { "block size 2^17",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.block_size' is 131072, at most 65536",
      { .keys = { SCALAR("block_size", QN_GGUF_U32, 131072) } } },
    { "a listed width that has no whole blocks",
      QN_ERR_FORMAT,
      "lists 'blk.0.ffn_down.weight' of width 18, expected a multiple of the block size 4",
      { .tensor = { "blk.0.ffn_down.weight", 2, { 18, 8 } } } },
    { "a table that has no whole blocks",
      QN_ERR_FORMAT,
      "'prism.hadamard.inverse_weight_names' lists 'token_embd.weight' of width 10, expected a multiple",
      { .tensor = { "token_embd.weight", 2, { 10, 6 } } } },
    { "an unknown transform",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.transform' is 'haar', expected normalized-sylvester-walsh-hadamard",
      { .keys = { TEXT("transform", "haar") } } },
    { "no transform",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.transform' is missing",
      { .keys = { DROPPED("transform") } } },
    { "an unknown axis",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.axis' is 'output', expected input-last-dimension",
      { .keys = { TEXT("axis", "output") } } },
    { "an unknown sign mode",
      QN_ERR_UNSUPPORTED,
      "key 'prism.hadamard.sign_mode' is 'random', expected identity or explicit",
      { .keys = { TEXT("sign_mode", "random") } } },
    { "identity with signs",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths' has signs, expected none",
      { .keys = { TEXT("sign_mode", "identity") } } },
    { "no sign widths",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths' is missing",
      { .keys = { DROPPED("sign_widths") } } },
    { "no sign values",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values' is missing",
      { .keys = { DROPPED("sign_values") } } },
    { "sign widths as a number",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths' is not an array",
      { .keys = { SCALAR("sign_widths", QN_GGUF_U32, 8) } } },
    { "sign values as strings",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values' is an array of string",
      { .keys = { STRINGS("sign_values", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1", "1",
                          "1") } } },
    { "a sign of 0",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values': element 2 is 0, expected 1 or -1",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I32, 4), NUMBERS("sign_values", QN_GGUF_I32, 1, -1, 0, 1) } } },
    { "a sign that is almost 1",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values': element 3 is 1.0000000000000002, expected 1 or -1",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I32, 4),
                  NUMBERS("sign_values", QN_GGUF_F64, 1, -1, 1, 1.0000000000000002) } } },
    { "signs as unsigned bytes",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values': element 1 is 255, expected 1 or -1",
      { .keys = { NUMBERS("sign_values", QN_GGUF_U8, 1, 255, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1) } } },
    { "too few signs",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values' has 23 elements, expected the sum",
      { .keys = { INTEGERS("sign_values", values, 23) } } },
    { "too many signs",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values' has 24 elements, expected the sum",
      { .keys = { INTEGERS("sign_widths", widths, 1) } } },
    { "a sign width that has no whole blocks",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths': element 1 is 6, expected a multiple of the block size 4",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I32, 16, 6) } } },
    { "a sign width of 0",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths': element 0 is 0, expected a multiple",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I32, 0, 8) } } },
    { "a negative sign width",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths': element 0 is -8, expected a multiple",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I64, -8, 8) } } },
    { "a sign width of 8 and a half",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths': element 0 is 8.5, expected a multiple",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_F32, 8.5, 8) } } },
    { "a sign width beyond every file",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_values' has 24 elements, expected the sum",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_U32, 2147483644, 8) } } },
    { "a sign width given twice",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.sign_widths' has 8 twice",
      { .keys = { NUMBERS("sign_widths", QN_GGUF_I32, 8, 16, 8),
                  NUMBERS("sign_values", QN_GGUF_I32, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1) } } },
    { "a listed width without signs",
      QN_ERR_FORMAT,
      "lists 'blk.0.ffn_down.weight' of width 16, for which 'prism.hadamard.sign_widths' has no signs",
      { .keys = { INTEGERS("sign_widths", no_width_16, 1), INTEGERS("sign_values", values, 8) } } },
    { "no names",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.weight_names' is missing",
      { .keys = { DROPPED("weight_names") } } },
    { "an empty list of names",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.weight_names' is empty",
      { .keys = { ARRAY("weight_names", QN_GGUF_STRING, .strings = NULL, 0) } } },
    { "names as numbers",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.weight_names' is of type array, expected an array of strings",
      { .keys = { NUMBERS("weight_names", QN_GGUF_I32, 1) } } },
    { "a name without a tensor",
      QN_ERR_FORMAT,
      "'prism.hadamard.weight_names' lists 'blk.9.ffn_down.weight', which is not a tensor",
      { .keys = { STRINGS("weight_names", "output.weight", "blk.9.ffn_down.weight") } } },
    { "a name given twice",
      QN_ERR_FORMAT,
      "'prism.hadamard.weight_names' lists 'output.weight' twice",
      { .keys = { STRINGS("weight_names", "output.weight", "blk.0.ffn_down.weight", "output.weight") } } },
    { "a name that is no matrix",
      QN_ERR_FORMAT,
      "lists 'blk.0.attn_norm.weight', which has 1 dimensions, expected a matrix",
      { .keys = { STRINGS("weight_names", "output.weight", "blk.0.attn_norm.weight") } } },
    { "a name that is more than a matrix",
      QN_ERR_FORMAT,
      "lists 'blk.0.ffn_down.weight', which has 3 dimensions, expected a matrix",
      { .tensor = { "blk.0.ffn_down.weight", 3, { 16, 8, 2 } } } },
    { "the table among the matrices",
      QN_ERR_FORMAT,
      "'prism.hadamard.weight_names' lists 'token_embd.weight', expected it only in",
      { .keys = { STRINGS("weight_names", "output.weight", "token_embd.weight") } } },
    { "q without k",
      QN_ERR_FORMAT,
      "lists 'blk.0.attn_q.weight' but not 'blk.0.attn_k.weight', which reads the same input",
      { .keys = { STRINGS("weight_names", "blk.0.attn_q.weight", "blk.0.attn_v.weight") } } },
    { "qkv without gate",
      QN_ERR_FORMAT,
      "lists 'blk.1.attn_qkv.weight' but not 'blk.1.attn_gate.weight', which reads the same input",
      { .keys = { STRINGS("weight_names", "blk.1.attn_qkv.weight") } } },
    { "up without gate",
      QN_ERR_FORMAT,
      "lists 'blk.0.ffn_up.weight' but not 'blk.0.ffn_gate.weight', which reads the same input",
      { .keys = { STRINGS("weight_names", "blk.0.ffn_up.weight") } } },
    { "an inverse of something else",
      QN_ERR_UNSUPPORTED,
      "'prism.hadamard.inverse_weight_names' lists 'output.weight', expected token_embd.weight alone",
      { .keys = { STRINGS("inverse_weight_names", "token_embd.weight", "output.weight") } } },
    { "the table given twice",
      QN_ERR_FORMAT,
      "'prism.hadamard.inverse_weight_names' lists 'token_embd.weight' twice",
      { .keys = { STRINGS("inverse_weight_names", "token_embd.weight", "token_embd.weight") } } },
    { "inverse names that are no array",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.inverse_weight_names' is of type string",
      { .keys = { TEXT("inverse_weight_names", "token_embd.weight") } } },
    { "no table in the file",
      QN_ERR_FORMAT,
      "lists 'token_embd.weight', which is not a tensor",
      { .tensor = { .name = "token_embd.weight" } } },
    { "grouped heads that are not rotated",
      QN_ERR_FORMAT,
      "'prism.hadamard.gdn_v_grouped' is true, expected 'blk.1.ssm_out.weight' in",
      { .keys = { STRINGS("weight_names", "output.weight") } } },
    { "grouped heads in some layers",
      QN_ERR_FORMAT,
      "'prism.hadamard.gdn_v_grouped' is true, expected 'blk.2.ssm_out.weight' in",
      { .tensor = { "blk.2.ssm_out.weight", 2, { 16, 8 } } } },
    { "grouped heads as a number",
      QN_ERR_FORMAT,
      "key 'prism.hadamard.gdn_v_grouped' is of type u8, expected bool",
      { .keys = { SCALAR("gdn_v_grouped", QN_GGUF_U8, 1) } } },
};

TEST_EACH(test_rejection, struct rejection, r, rejections)
{
    struct opened o;
    const qn_status status = open_changed(&o, valid_keys, COUNT(valid_keys), &r->changes);
    if (status != r->status)
        fail_msg("status is %d, expected %d: %s", (int)status, (int)r->status, status ? qn_error_text() : "accepted");
    if (!strstr(qn_error_text(), r->text))
        fail_msg("'%s' is not in '%s'", r->text, qn_error_text());
    assert_int_equal(o.rotation.block, 0);
    assert_null(o.rotation.names);
    close_changed(&o);
}

/* Version 2 uses the embedding table as output matrix, so the table must be listed as rotated. */
TEST(tied_output_without_table)
{
    struct opened o;
    struct key keys[COUNT(valid_keys)];
    memcpy(keys, valid_keys, sizeof keys);
    keys[7].strings++;
    keys[7].n--;
    keys[8].n = 0;
    assert_fails(
        open_changed(&o, keys, COUNT(keys), &(struct changes){ { VERSION_2, TIED }, { .name = "output.weight" } }),
        QN_ERR_FORMAT, "does not list 'token_embd.weight', expected it with prism.hadamard.version 2");
    close_changed(&o);
}
