/* Mutations of JSON as a tree, by Jansson: values and keys are replaced, copied, moved, nested and repeated, so that
 * inputs stay JSON and reach the code that reads their fields. One mutation in eight, and any input that is not JSON,
 * is mutated as bytes.
 *
 * Before it includes this, a target defines json_words: keys and texts that the code looks for, with NULL at the
 * end. It calls mutate_json from its LLVMFuzzerCustomMutator. */
#ifndef QN_TESTS_MUTATE_JSON_H
#define QN_TESTS_MUTATE_JSON_H

#include "fuzz.h"

#include <jansson.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed);

enum { JSON_MAX_NODES = 2000, JSON_MAX_STRING = 400 };

struct json_node {
    json_t *parent, *value; /* parent NULL: the root */
    const char *key;        /* in an object */
    size_t index;           /* in an array */
};

struct json_mutation {
    uint64_t state;
    json_t *root;
    struct json_node nodes[JSON_MAX_NODES];
    size_t n_nodes;
};

static inline uint64_t draw(struct json_mutation *m, uint64_t n)
{
    m->state ^= m->state << 13;
    m->state ^= m->state >> 7;
    m->state ^= m->state << 17;
    return n ? (m->state >> 11) % n : 0;
}

/* ---- The tree ---- */

static inline void collect(struct json_mutation *m, json_t *parent, const char *key, size_t index, json_t *value)
{
    size_t i;
    json_t *child;
    if (m->n_nodes == JSON_MAX_NODES)
        return;
    m->nodes[m->n_nodes++] = (struct json_node){ parent, value, key, index };
    if (json_is_object(value))
        json_object_foreach(value, key, child) collect(m, value, key, 0, child);
    else
        json_array_foreach(value, i, child) collect(m, value, NULL, i, child);
}

static inline struct json_node *any_node(struct json_mutation *m)
{
    m->n_nodes = 0;
    collect(m, NULL, NULL, 0, m->root);
    return &m->nodes[draw(m, m->n_nodes)];
}

/* Replaces a node's value; owns `value`. */
static inline void put_node(struct json_mutation *m, const struct json_node *node, json_t *value)
{
    if (!value)
        return;
    if (!node->parent) {
        json_decref(m->root);
        m->root = value;
    } else if (node->key) {
        json_object_set_new_nocheck(node->parent, node->key, value);
    } else {
        json_array_set_new(node->parent, node->index, value);
    }
}

/* ---- New values ---- */

static inline const char *any_word(struct json_mutation *m)
{
    size_t n = 0;
    while (json_words[n])
        n++;
    return n ? json_words[draw(m, n)] : "";
}

static inline json_t *new_number(struct json_mutation *m)
{
    static const json_int_t integers[] = { 0,         1,         -1,        2,        3,     7,         8,
                                           63,        64,        65,        127,      128,   255,       256,
                                           511,       512,       65535,     65536,    99999, INT32_MAX, INT32_MIN,
                                           1ll << 32, 1ll << 53, INT64_MAX, INT64_MIN };
    static const double reals[] = { 0.5,
                                    -0.0,
                                    1.0,
                                    1e-300,
                                    1e300,
                                    -1e300,
                                    1.7976931348623157e308,
                                    4.9e-324,
                                    1e15,
                                    9007199254740993.0,
                                    2.0,
                                    0.1,
                                    1e9,
                                    -1.5,
                                    1.2345678912345678e300 };
    return draw(m, 2) ? json_integer(integers[draw(m, sizeof integers / sizeof *integers)])
                      : json_real(reals[draw(m, sizeof reals / sizeof *reals)]);
}

static inline json_t *new_string(struct json_mutation *m)
{
    static const char *const texts[] = {
        "",       " ",       "a",  "null", "1",    "é", "🤗",         "\n\n",     "\x01",         "{\"a\":1}",
        "[",      "\\",      "\"", "%s%n", "../x", "Ġ", "<|im_start|>", "</think>", "</tool_call>", "\u2028",
        "\u202e", "\xc2\x85"
    };
    if (draw(m, 3) == 0)
        return json_string(any_word(m));
    if (draw(m, 4) == 0) { /* a long one */
        char *text = malloc(20000);
        const size_t n = draw(m, draw(m, 2) ? 300 : 20000);
        require(text, "memory");
        memset(text, "a 0{[\\\"x"[draw(m, 8)], n);
        json_t *value = json_stringn_nocheck(text, n);
        free(text);
        return value;
    }
    return json_string(texts[draw(m, sizeof texts / sizeof *texts)]);
}

static inline json_t *new_value(struct json_mutation *m)
{
    switch (draw(m, 8)) {
    case 0: return json_null();
    case 1: return json_boolean(draw(m, 2));
    case 2: return json_array();
    case 3: return json_object();
    case 4:
    case 5: return new_string(m);
    default: return new_number(m);
    }
}

/* A string with its bytes mutated; NULL if they are not text. */
static inline json_t *mutated_string(const json_t *value)
{
    char text[JSON_MAX_STRING + 1];
    size_t n = json_string_length(value);
    n = n < JSON_MAX_STRING / 2 ? n : JSON_MAX_STRING / 2;
    memcpy(text, json_string_value(value), n);
    n = LLVMFuzzerMutate((uint8_t *)text, n, JSON_MAX_STRING);
    return json_stringn(text, n);
}

static inline json_t *changed_value(struct json_mutation *m, const json_t *value)
{
    if (json_is_string(value))
        return draw(m, 2) ? mutated_string(value) : new_string(m);
    if (json_is_integer(value) && draw(m, 2)) {
        const uint64_t n = (uint64_t)json_integer_value(value);
        const uint64_t changes[] = { n + 1, n - 1, 0 - n, n * 2, n / 2, n * 1000, n << 31, n ^ 1ull << draw(m, 64) };
        return json_integer((json_int_t)changes[draw(m, 8)]);
    }
    if (json_is_real(value) && draw(m, 2)) {
        const double n = json_real_value(value),
                     changes[] = { -n, n / 2, n * 1000, n * 1e150, 1 / (n != 0 ? n : 1), n + 0.5 };
        return json_real(changes[draw(m, 6)]); /* NULL if it is not a number */
    }
    return draw(m, 4) ? new_number(m) : new_value(m);
}

/* ---- Mutations ---- */

static inline void remove_node(const struct json_node *node)
{
    if (node->key)
        json_object_del(node->parent, node->key);
    else if (node->parent)
        json_array_remove(node->parent, node->index);
}

/* In an array: copies an element; in an object: adds keys with one value. */
static inline void repeat_node(struct json_mutation *m, const struct json_node *node)
{
    const size_t n = draw(m, 16) ? 1 + draw(m, 3) : 1 + draw(m, 600);
    char key[64];
    json_t *value = json_deep_copy(node->value);
    for (size_t i = 0; i < n && value && node->parent; i++) {
        snprintf(key, sizeof key, "%.40s%zu", node->key ? node->key : "", i);
        if (node->key)
            json_object_set_nocheck(node->parent, key, value);
        else
            json_array_insert(node->parent, node->index, value);
    }
    json_decref(value);
}

static inline void rename_node(struct json_mutation *m, const struct json_node *node)
{
    if (!node->key)
        return;
    json_incref(node->value);
    json_object_del(node->parent, node->key);
    json_object_set_new(node->parent, any_word(m), node->value);
}

static inline void add_child(struct json_mutation *m, const struct json_node *node)
{
    const struct json_node other = m->nodes[draw(m, m->n_nodes)];
    json_t *child = draw(m, 2) ? json_deep_copy(other.value) : new_value(m);
    if (json_is_object(node->value))
        json_object_set_new(node->value, other.key && draw(m, 4) == 0 ? other.key : any_word(m), child);
    else if (json_is_array(node->value))
        json_array_insert_new(node->value, draw(m, json_array_size(node->value) + 1), child);
    else
        json_decref(child);
}

static inline void nest_node(struct json_mutation *m, const struct json_node *node)
{
    const size_t depth = draw(m, 8) ? 1 : 1 + draw(m, 300);
    json_t *value = json_deep_copy(node->value);
    const char *word = any_word(m);
    for (size_t i = 0; i < depth && value; i++)
        value = draw(m, 2) ? json_pack("[o]", value) : json_pack("{s:o}", word, value);
    put_node(m, node, value);
}

static inline void mutate_tree(struct json_mutation *m)
{
    const struct json_node node = *any_node(m);
    switch (draw(m, 12)) {
    case 0: put_node(m, &node, new_value(m)); break;
    case 1: put_node(m, &node, json_deep_copy(m->nodes[draw(m, m->n_nodes)].value)); break;
    case 2: remove_node(&node); break;
    case 3: repeat_node(m, &node); break;
    case 4: rename_node(m, &node); break;
    case 5:
    case 6:
    case 7: add_child(m, &node); break;
    case 8: nest_node(m, &node); break;
    default:
        if (json_is_object(node.value) || json_is_array(node.value))
            add_child(m, &node);
        else
            put_node(m, &node, changed_value(m, node.value));
    }
}

/* mutate_json - mutates the bytes from `begin` to `end` of an input of [size] as JSON; the bytes after them follow
 * the result. Returns the new size. */
static inline size_t mutate_json(uint8_t *data, size_t size, size_t max_size, size_t begin, size_t end,
                                 unsigned int seed)
{
    struct json_mutation *m = calloc(1, sizeof *m);
    require(m, "memory");
    m->state = (seed + 1) * 0x9e3779b97f4a7c15;
    m->root = draw(m, 8) && end > begin
                  ? json_loadb((const char *)data + begin, end - begin, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)
                  : NULL;
    const size_t behind = size - end, room = max_size - begin - behind;
    char *text = m->root ? malloc(room + 1) : NULL;
    size_t n = 0;
    if (text) {
        for (uint64_t left = 1 + draw(m, 3); left; left--)
            mutate_tree(m);
        n = json_dumpb(m->root, text, room,
                       JSON_ENCODE_ANY | (draw(m, 8) ? JSON_COMPACT : JSON_INDENT(1)) |
                           (draw(m, 8) ? 0 : JSON_ENSURE_ASCII));
    }
    if (n && n <= room) {
        memmove(data + begin + n, data + end, behind);
        memcpy(data + begin, text, n);
        size = begin + n + behind;
    } else {
        size = LLVMFuzzerMutate(data, size, max_size);
    }
    json_decref(m->root);
    free(text);
    free(m);
    return size;
}

#endif
